package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const (
	containerPort = 80
	answerTime    = time.Second             // for an answer of who is near
	patience      = 2500 * time.Millisecond // the reference returns while the gateway's IPv6 address is tentative
	smallPacket   = 64
)

// scratch is a container of nobody's: a network namespace without processes.
type scratch struct {
	node.Container
	cni.Result
	netns  *ns.NS
	inside *rtnl.Conn
	raw    json.RawMessage // the result as it came
	ips    []netip.Addr
	link   rtnl.Link    // its interface
	echoes []netip.Addr // gateways that answer ICMP
}

// notes are what a step finds.
type notes struct {
	said []string
	errs []error
}

func (n *notes) add(word string, err error) {
	if err == nil {
		n.said = append(n.said, word)
	} else {
		n.errs = append(n.errs, err)
	}
}

// sum is the step's outcome; it was skipped where there is nothing.
func (n *notes) sum(nothing string) (string, error) {
	if len(n.said)+len(n.errs) == 0 {
		return "", skipped(nothing)
	}
	return strings.Join(n.said, ", "), errors.Join(n.errs...)
}

// dial connects from inside a namespace, or with nil from ours.
func dial(ctx context.Context, from *ns.NS, network, address string) (conn net.Conn, err error) {
	connect := func() (err error) {
		if conn, err = (&net.Dialer{Timeout: answerTime}).DialContext(ctx, network, address); err == nil {
			err = conn.SetDeadline(time.Now().Add(answerTime))
		}
		return err
	}
	if from == nil {
		err = connect()
	} else {
		err = from.Do(connect)
	}
	return conn, err
}

// echo asks an address by ICMP until it answers, in packets of a size with the IP header. All but the type is 0: who
// answers is told by the socket, what by the length. The kernel writes the checksum of ICMPv6, and forbids to fragment
// a packet that fits the interface.
func (s *scratch) echo(ctx context.Context, to netip.Addr, size int) error {
	network, header, reply, request := "ip4:1", 20, byte(0), []byte{8, 0, 0xf7, 0xff}
	if to.Is6() {
		network, header, reply, request = "ip6:58", 40, 129, []byte{128}
	}
	if to.Is6() && to.IsLinkLocalUnicast() {
		to = to.WithZone(strconv.Itoa(s.link.Index))
	}
	conn, err := dial(ctx, s.netns, network, to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	packet, buf := make([]byte, size-header), make([]byte, size)
	copy(packet, request)
	for end := time.Now().Add(patience); ctx.Err() == nil && time.Now().Before(end); {
		_ = conn.SetDeadline(time.Now().Add(answerTime / 4))
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

// gateways are those that routes of the result lead through.
func (t *trial) gateways(ctx context.Context) (string, error) {
	s, n, asked := t.made[0], notes{}, []netip.Addr{}
	for _, r := range s.Routes {
		gw := r.GW
		if !gw.IsValid() {
			gw = s.Gateway(r.Dst.Addr().Is4())
		}
		if !gw.IsValid() || gw.IsUnspecified() || slices.Contains(asked, gw) {
			continue
		}
		asked = append(asked, gw)
		err := s.echo(ctx, gw, smallPacket)
		if err == nil {
			s.echoes = append(s.echoes, gw)
			n.add(gw.String(), nil)
		} else if s.inside.HasNeighbour(s.link.Index, gw) {
			n.add(gw.String()+" by ARP or ND alone", nil)
		} else {
			n.add("", fmt.Errorf("%w, nor ARP or ND", err))
		}
	}
	return n.sum("no route of the result has one")
}

// dns asks the servers for the root's servers. One that is silent may be elsewhere, and down.
func (t *trial) dns(ctx context.Context) (string, error) {
	var n notes
	for _, server := range t.made[0].DNS.Nameservers {
		conn, err := dial(ctx, t.made[0].netns, "udp", net.JoinHostPort(server, "53"))
		if err != nil {
			n.add("", err)
			continue
		}
		if _, err = conn.Write([]byte{12: 0, 2: 1, 5: 1, 14: 2, 16: 1}); err == nil {
			_, err = conn.Read(make([]byte, 512))
		}
		word := server + " answers"
		if err != nil {
			word = "warning: " + server + " does not answer"
		}
		n.add(word, conn.Close())
	}
	return n.sum("the result names no server")
}

// uplink is the host's link to everywhere, and its addresses; nothing where there is none.
func uplink() (link rtnl.Link, addrs []netip.Addr) {
	host := rtnl.Host()
	defer host.Close()
	index, err := host.RouteTo(netip.AddrFrom4([4]byte{198, 51, 100, 1})) // nobody's
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
	s, n := t.made[0], notes{}
	n.add(strconv.Itoa(s.link.MTU), nil)
	if up, _ := uplink(); up.MTU != 0 && up.MTU < s.link.MTU {
		n.add(fmt.Sprintf("warning: the host's %s has %d", up.Name, up.MTU), nil)
	}
	for _, gw := range s.echoes {
		if err := s.echo(ctx, gw, s.link.MTU); err != nil {
			n.add("", fmt.Errorf("%w in packets of the interface's MTU, %d bytes", err, s.link.MTU))
		}
	}
	if len(s.echoes) == 0 {
		n.add("no packet was tried: no gateway answers ICMP echo", nil)
	}
	return n.sum("")
}

// neighbours has both containers ask each other. It fails where they are on a bridge that does not isolate them.
func (t *trial) neighbours(ctx context.Context) (string, error) {
	a, b, err := t.made[0], t.made[1], error(nil)
	for i := 0; i < min(len(a.ips), len(b.ips)) && err == nil; i++ {
		if err = a.echo(ctx, b.ips[i], smallPacket); err == nil {
			err = b.echo(ctx, a.ips[i], smallPacket)
		}
	}
	main := t.list.Plugins[0]
	switch {
	case len(a.ips) == 0:
		return "", skipped("they have no addresses")
	case err == nil:
		return "both reach each other", nil
	case main.Type == "bridge" && string(main.Raw["portIsolation"]) != "true":
		return "", fmt.Errorf("the containers do not reach each other: %w", err)
	}
	return "they do not reach each other: " + err.Error(), nil
}

// hostPort connects to the first container by the host's addresses, from the host and from the second container.
func (t *trial) hostPort(ctx context.Context) (string, error) {
	s, n := t.made[0], notes{}
	if t.port == 0 {
		return "", skipped("no plugin of the list takes portMappings")
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
	go answer(listener, s.ID)
	try := func(who string, from *ns.NS, addr netip.Addr) {
		to := netip.AddrPortFrom(addr, uint16(t.port)).String()
		n.add(who+" by "+to, says(ctx, from, to, s.ID))
	}
	_, own := uplink()
	own = append(own, s.echoes...) // which may be the host's
	noSNAT := func(e node.Entry) bool { return takesPorts(e) && string(e.Raw["snat"]) == "false" }
	for _, ip := range s.ips {
		if i := slices.IndexFunc(own, func(a netip.Addr) bool { return a.BitLen() == ip.BitLen() }); i >= 0 {
			try("host", nil, own[i])
			if t.attached > 1 {
				try("neighbour", t.made[1].netns, own[i])
			}
		}
		if ip.Is4() && !slices.ContainsFunc(t.list.Plugins, noSNAT) {
			try("host", nil, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		}
	}
	return n.sum("the host has no address to try")
}

// answer says a word to each who connects.
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

// says is an error where it is not the word that is answered at an address.
func says(ctx context.Context, from *ns.NS, to, word string) error {
	conn, err := dial(ctx, from, "tcp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	said := make([]byte, len(word))
	if _, err := io.ReadFull(conn, said); err != nil || string(said) != word {
		return fmt.Errorf("%s is answered by somebody else", to)
	}
	return nil
}
