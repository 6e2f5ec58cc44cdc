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
	attachment node.Attachment
	result     *cni.Result // the result of ADD
	netns      *ns.NS
	conn       *rtnl.Conn
	ips        []netip.Addr
	link       rtnl.Link    // the attached interface
	echoes     []netip.Addr // gateways that answer ICMP
}

// outcomes are the positive and negative outcomes of a step.
type outcomes struct{ good, bad []string }

func (o *outcomes) add(word string, err error) {
	if err == nil {
		o.good = append(o.good, word)
	} else {
		o.bad = append(o.bad, err.Error())
	}
}

// result returns the result of the step, which was skipped if it has no outcome.
func (o *outcomes) result(nothing string) (string, error) {
	switch {
	case o.bad != nil:
		return "", errors.New(strings.Join(o.bad, ", "))
	case o.good != nil:
		return strings.Join(o.good, ", "), nil
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
			controlErr := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), s.attachment.IfName) })
			return errors.Join(controlErr, err)
		}
		err = s.netns.Do(connect)
	}
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(replyTime))
}

// echo sends ICMP echo requests of a size, including the IP header, until the address answers. All fields except the
// type and the checksum are 0: the socket only receives packets from the address, and the length identifies the answer.
// The kernel writes the checksum of ICMPv6, and does not fragment a packet that fits the interface.
func (s *testContainer) echo(ctx context.Context, addr netip.Addr, size int) error {
	network, header, reply, request := "ip4:1", 20, byte(0), []byte{8, 0, 0xf7, 0xff}
	if addr.Is6() {
		network, header, reply, request = "ip6:58", 40, 129, []byte{128}
	}
	conn, err := s.dial(ctx, network, addr.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	packet, buf := make([]byte, size-header), make([]byte, size)
	copy(packet, request)
	for deadline := time.Now().Add(echoTime); ctx.Err() == nil && time.Now().Before(deadline); {
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
	return fmt.Errorf("%s does not answer ICMP echo", addr)
}

// skipIfTap returns the reason to skip a test with packets, or nil. With a tap, only the program that opens it gets
// packets.
func (t *trial) skipIfTap() error {
	isTap := func(e node.Entry) bool { return e.Is("tap") || e.Is("tc-redirect-tap") }
	if slices.ContainsFunc(t.list.Plugins, isTap) {
		return skipped("only a program that opens the tap, such as a virtual machine, gets packets")
	}
	return nil
}

func (t *trial) gateways(ctx context.Context) (string, error) {
	if err := t.skipIfTap(); err != nil {
		return "", err
	}
	s, o, tested := t.containers[0], outcomes{}, []netip.Addr{}
	for _, r := range s.result.Routes {
		gw := r.GW
		if !gw.IsValid() {
			gw = s.result.Gateway(r.Dst.Addr().Is4())
		}
		if !gw.IsValid() || gw.IsUnspecified() || slices.Contains(tested, gw) {
			continue
		}
		tested = append(tested, gw)
		word, err := gw.String(), s.echo(ctx, gw, smallPacket)
		switch {
		case err == nil:
			s.echoes = append(s.echoes, gw)
		case s.conn.HasNeighbor(s.link.Index, gw):
			word, err = word+" by ARP or ND only", nil
		default:
			err = fmt.Errorf("%w, nor ARP or ND", err)
		}
		o.add(word, err)
	}
	return o.result("no route of the result has a gateway")
}

// dns asks each DNS server in the result for the root's name servers. A server that does not answer causes only a
// warning, because it may be on another machine that is down.
func (t *trial) dns(ctx context.Context) (string, error) {
	if err := t.skipIfTap(); err != nil {
		return "", err
	}
	var o outcomes
	for _, server := range t.containers[0].result.DNS.Nameservers {
		word := server + " answers"
		conn, err := t.containers[0].dial(ctx, "udp", net.JoinHostPort(server, "53"))
		if err == nil {
			_, _ = conn.Write([]byte{2: 1, 5: 1, 14: 2, 16: 1}) // RD, QDCOUNT, NS, IN. Read returns the error.
			if _, readErr := conn.Read(make([]byte, 512)); readErr != nil {
				word = "warning: " + server + " does not answer"
			}
			_ = conn.Close()
		}
		o.add(word, err)
	}
	return o.result("the result has no DNS server")
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
	s := t.containers[0]
	text := strconv.Itoa(s.link.MTU)
	if up, _ := uplink(); up.MTU != 0 && up.MTU < s.link.MTU {
		text += ", warning: the host's " + up.Name + " has " + strconv.Itoa(up.MTU)
	}
	if len(s.echoes) == 0 {
		text += ", not tested: no gateway answers ICMP echo"
	}
	for _, gw := range s.echoes {
		if err := s.echo(ctx, gw, s.link.MTU); err != nil {
			return "", fmt.Errorf("%w in packets of %d bytes, the interface's MTU", err, s.link.MTU)
		}
	}
	return text, nil
}

// isIsolated reports whether the list keeps containers from reaching each other.
func (t *trial) isIsolated() bool {
	return slices.ContainsFunc(t.list.Plugins, func(e node.Entry) bool {
		return e.Is("bridge") && string(e.Raw["portIsolation"]) == "true" ||
			e.Is("firewall") && rawText(e.Raw["ingressPolicy"]) == "isolated"
	})
}

// neighbors tests whether the containers reach each other. They must do so only on a bridge without isolation.
func (t *trial) neighbors(ctx context.Context) (string, error) {
	a, b, err := t.containers[0], t.containers[1], t.skipIfTap()
	if err != nil {
		return "", err
	}
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
	case main.Is("bridge") && !t.isIsolated():
		return "", fmt.Errorf("the containers do not reach each other: %w", err)
	}
	return "the containers do not reach each other: " + err.Error(), nil
}

// hostPort connects to the first container through the host's addresses, from the host and from the second container.
func (t *trial) hostPort(ctx context.Context) (string, error) {
	s, o := t.containers[0], outcomes{}
	if t.port == 0 {
		return "", skipped("no plugin of the list uses portMappings")
	}
	if err := t.skipIfTap(); err != nil {
		return "", err
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
	go answer(listener, s.attachment.ContainerID)
	test := func(client string, dialer *testContainer, addr netip.Addr) {
		address := netip.AddrPortFrom(addr, uint16(t.port)).String()
		o.add(client+" by "+address, expectAnswer(ctx, dialer, address, s.attachment.ContainerID))
	}
	_, hostAddrs := uplink()
	hostAddrs = append(hostAddrs, s.echoes...) // may be addresses of the host
	noSNAT := func(e node.Entry) bool { return hasPortMappings(e) && string(e.Raw["snat"]) == "false" }
	for _, ip := range s.ips {
		if i := slices.IndexFunc(hostAddrs, func(a netip.Addr) bool { return a.BitLen() == ip.BitLen() }); i >= 0 {
			test("host", nil, hostAddrs[i])
			if t.attached > 1 && !t.isIsolated() {
				test("neighbor", t.containers[1], hostAddrs[i])
			}
		}
		if ip.Is4() && !slices.ContainsFunc(t.list.Plugins, noSNAT) {
			test("host", nil, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		}
	}
	return o.result("the host has no address to test")
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
func expectAnswer(ctx context.Context, client *testContainer, address, word string) error {
	conn, err := client.dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	answer := make([]byte, len(word))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != word {
		return fmt.Errorf("another server answers at %s", address)
	}
	return nil
}
