package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const (
	containerPort = 80
	replyTime     = time.Second             // limit for an answer from the node or the local network
	echoTime      = 2500 * time.Millisecond // the reference's ADD returns while the gateway's IPv6 address is tentative
	smallPacket   = 64
)

// testContainer is a network namespace without processes that a test attaches.
type testContainer struct {
	node.Attachment
	*cni.Result // the result of ADD
	netns       *ns.NS
	inside      *rtnl.Conn
	ips         []netip.Addr
	link        rtnl.Link    // the attached interface
	echoes      []netip.Addr // gateways that answer ICMP
}

// outcomes are the positive and negative outcomes of a step.
type outcomes struct{ good, bad []string }

func (n *outcomes) add(word string, err error) {
	if err == nil {
		n.good = append(n.good, word)
	} else {
		n.bad = append(n.bad, err.Error())
	}
}

// result returns the result of the step, which was skipped if it has no outcome.
func (n *outcomes) result(nothing string) (string, error) {
	switch {
	case n.bad != nil:
		return "", errors.New(strings.Join(n.bad, ", "))
	case n.good != nil:
		return strings.Join(n.good, ", "), nil
	}
	return "", skipped(nothing)
}

// dial connects through the container's interface, or from the host if the container is nil.
func (s *testContainer) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	dialer := net.Dialer{Timeout: replyTime}
	connect := func() (err error) {
		conn, err = dialer.DialContext(ctx, network, address)
		return err
	}
	if s == nil {
		err = connect()
	} else {
		dialer.Control = func(_, _ string, c syscall.RawConn) (err error) {
			bad := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), s.IfName) })
			return errors.Join(bad, err)
		}
		err = s.netns.Do(connect)
	}
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(replyTime))
}

// echo sends ICMP echo requests of a size, including the IP header, until the address answers. All fields except the
// type are 0: the socket only receives packets from the address, and the length identifies the answer. The kernel
// writes the checksum of ICMPv6, and does not fragment a packet that fits the interface.
func (s *testContainer) echo(ctx context.Context, to netip.Addr, size int) error {
	network, header, reply, request := "ip4:1", 20, byte(0), []byte{8, 0, 0xf7, 0xff}
	if to.Is6() {
		network, header, reply, request = "ip6:58", 40, 129, []byte{128}
	}
	conn, err := s.dial(ctx, network, to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	packet, buf := make([]byte, size-header), make([]byte, size)
	copy(packet, request)
	for end := time.Now().Add(echoTime); ctx.Err() == nil && time.Now().Before(end); {
		_ = conn.SetDeadline(time.Now().Add(replyTime / 4))
		_, err := conn.Write(packet)
		for n := 0; err == nil; {
			if n, _, err = conn.(*net.IPConn).ReadFrom(buf); err == nil && n == len(packet) && buf[0] == reply {
				return nil
			}
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return fmt.Errorf("%s does not answer ICMP echo", to)
}

func (t *trial) gateways(ctx context.Context) (string, error) {
	s, n, asked := t.made[0], outcomes{}, []netip.Addr{}
	for _, r := range s.Routes {
		gw := r.GW
		if !gw.IsValid() {
			gw = s.Gateway(r.Dst.Addr().Is4())
		}
		if !gw.IsValid() || gw.IsUnspecified() || slices.Contains(asked, gw) {
			continue
		}
		asked = append(asked, gw)
		word, err := gw.String(), s.echo(ctx, gw, smallPacket)
		switch {
		case err == nil:
			s.echoes = append(s.echoes, gw)
		case s.inside.HasNeighbor(s.link.Index, gw):
			word, err = word+" by ARP or ND only", nil
		default:
			err = fmt.Errorf("%w, nor ARP or ND", err)
		}
		n.add(word, err)
	}
	return n.result("no route of the result has a gateway")
}

// dns asks each DNS server in the result for the root's name servers. A server that does not answer causes only a
// warning, because it may be on another machine that is down.
func (t *trial) dns(ctx context.Context) (string, error) {
	var n outcomes
	for _, server := range t.made[0].DNS.Nameservers {
		word := server + " answers"
		conn, err := t.made[0].dial(ctx, "udp", net.JoinHostPort(server, "53"))
		if err == nil {
			_, _ = conn.Write([]byte{2: 1, 5: 1, 14: 2, 16: 1}) // Read returns the error
			if _, silent := conn.Read(make([]byte, 512)); silent != nil {
				word = "warning: " + server + " does not answer"
			}
			_ = conn.Close()
		}
		n.add(word, err)
	}
	return n.result("the result has no DNS server")
}

// uplink returns the host's link with the default route, and the link's addresses. It returns zero values if there is
// no default route.
func uplink() (link rtnl.Link, addrs []netip.Addr) {
	host := rtnl.Host()
	defer host.Close()
	index, err := host.RouteTo(netip.AddrFrom4([4]byte{198, 51, 100, 1})) // TEST-NET-2
	if err != nil {
		index, err = host.RouteTo(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8}))
	}
	if err == nil {
		link, _ = host.LinkByIndex(index)
		all, _ := host.Addrs(index)
		for _, a := range all {
			if a.Prefix.Addr().IsGlobalUnicast() {
				addrs = append(addrs, a.Prefix.Addr())
			}
		}
	}
	return link, addrs
}

func (t *trial) mtu(ctx context.Context) (string, error) {
	s := t.made[0]
	said := strconv.Itoa(s.link.MTU)
	if up, _ := uplink(); up.MTU != 0 && up.MTU < s.link.MTU {
		said += ", warning: the host's " + up.Name + " has " + strconv.Itoa(up.MTU)
	}
	if len(s.echoes) == 0 {
		said += ", not tested: no gateway answers ICMP echo"
	}
	for _, gw := range s.echoes {
		if err := s.echo(ctx, gw, s.link.MTU); err != nil {
			return "", fmt.Errorf("%w in packets of %d bytes, the interface's MTU", err, s.link.MTU)
		}
	}
	return said, nil
}

// neighbors tests whether both containers reach each other. A failure is an error only on a bridge that does not
// isolate its ports.
func (t *trial) neighbors(ctx context.Context) (string, error) {
	a, b, err := t.made[0], t.made[1], error(nil)
	for i := 0; i < min(len(a.ips), len(b.ips)) && err == nil; i++ {
		if err = a.echo(ctx, b.ips[i], smallPacket); err == nil {
			err = b.echo(ctx, a.ips[i], smallPacket)
		}
	}
	main := t.list.Plugins[0]
	switch {
	case len(a.ips) == 0:
		return "", skipped("the containers have no addresses")
	case err == nil:
		return "the containers reach each other", nil
	case main.Is("bridge") && string(main.Raw["portIsolation"]) != "true":
		return "", fmt.Errorf("the containers do not reach each other: %w", err)
	}
	return "the containers do not reach each other: " + err.Error(), nil
}

// hostPort connects to the first container through the host's addresses, from the host and from the second container.
func (t *trial) hostPort(ctx context.Context) (string, error) {
	s, n := t.made[0], outcomes{}
	if t.port == 0 {
		return "", skipped("no plugin of the list uses portMappings")
	}
	var listener *net.TCPListener
	err := s.netns.Do(func() (err error) {
		listener, err = net.ListenTCP("tcp", &net.TCPAddr{Port: containerPort})
		return err
	})
	if err != nil {
		return "", err
	}
	defer listener.Close()
	go answer(listener, s.ContainerID)
	try := func(client string, from *testContainer, addr netip.Addr) {
		to := netip.AddrPortFrom(addr, uint16(t.port)).String()
		n.add(client+" by "+to, expectAnswer(ctx, from, to, s.ContainerID))
	}
	_, own := uplink()
	own = append(own, s.echoes...) // may be addresses of the host
	noSNAT := func(e node.Entry) bool { return hasPortMappings(e) && string(e.Raw["snat"]) == "false" }
	for _, ip := range s.ips {
		if i := slices.IndexFunc(own, func(a netip.Addr) bool { return a.BitLen() == ip.BitLen() }); i >= 0 {
			try("host", nil, own[i])
			if t.attached > 1 {
				try("neighbor", t.made[1], own[i])
			}
		}
		if ip.Is4() && !slices.ContainsFunc(t.list.Plugins, noSNAT) {
			try("host", nil, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		}
	}
	return n.result("the host has no address to test")
}

func answer(l net.Listener, word string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, word)
		_ = conn.Close()
	}
}

// expectAnswer returns an error unless the server at an address sends the word.
func expectAnswer(ctx context.Context, from *testContainer, to, word string) error {
	conn, err := from.dial(ctx, "tcp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	said := make([]byte, len(word))
	if _, err := io.ReadFull(conn, said); err != nil || string(said) != word {
		return fmt.Errorf("another server answers at %s", to)
	}
	return nil
}
