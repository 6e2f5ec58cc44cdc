package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

const (
	port     = 8080
	patience = 3 * time.Second
	moment   = patience / 6 // for what must not arrive
)

// The addresses of the bridge, of the host's uplink and of the machine outside.
var (
	gateway = []netip.Addr{netip.MustParseAddr("10.88.0.1"), netip.MustParseAddr("fd00:88::1")}
	uplink  = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	outside = []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
)

// probe is one conversation: who asks whom, and whom the server must see. No
// server must be reached where seen is not valid.
type probe struct {
	from, to string // namespaces; "" is the host
	addr     netip.Addr
	seen     netip.Addr
	public   bool // through the published port of the host
}

func prove(n *network) error {
	title("proof: each server answers with the source address that it sees")
	if n.hasFirewall() {
		fmt.Println("   The FORWARD chain still drops; firewall lets the containers through.")
	}
	return converse([]string{"", "outside", "one", "two", "three"}, probes(n))
}

// proveDropped shows that the host forwards nothing from the container and to its
// published port, though the container and the host reach each other.
func proveDropped(one *container) error {
	var list []probe
	for family := range 2 {
		list = append(list,
			probe{from: "one", to: "", addr: gateway[family], seen: one.addrs[family]},
			probe{from: "", to: "one", addr: uplink[family], seen: uplink[family], public: true},
			probe{from: "one", to: "outside", addr: outside[family]},
			probe{from: "outside", to: "one", addr: uplink[family], public: true},
		)
	}
	return converse([]string{"", "outside", "one"}, list)
}

// converse starts servers in these namespaces and has the conversations.
func converse(servers []string, list []probe) error {
	for _, netns := range servers {
		closeAll, err := serve(netns)
		if err != nil {
			return err
		}
		defer closeAll()
	}
	wrong := 0
	for _, p := range list {
		for _, proto := range []string{"tcp", "udp"} {
			if !p.run(proto) {
				wrong++
			}
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d conversations were not as expected", wrong)
	}
	return nil
}

func probes(n *network) []probe {
	one, two, three := n.containers[0], n.containers[1], n.containers[2]
	var list []probe
	for family := range 2 {
		list = append(list,
			probe{from: "one", to: "two", addr: two.addrs[family], seen: one.addrs[family]},
			probe{from: "three", to: "one", addr: one.addrs[family], seen: three.addrs[family]},
			probe{from: "two", to: "", addr: gateway[family], seen: two.addrs[family]},
			probe{from: "", to: "three", addr: three.addrs[family], seen: gateway[family]},
			probe{from: "one", to: "outside", addr: outside[family], seen: uplink[family]},
			probe{from: "three", to: "outside", addr: outside[family], seen: uplink[family]},
			// Without a way back, only masquerade explains the answers above.
			probe{from: "outside", to: "one", addr: one.addrs[family]},
			probe{from: "outside", to: "one", addr: uplink[family], seen: outside[family], public: true},
			probe{from: "", to: "one", addr: uplink[family], seen: uplink[family], public: true},
			probe{from: "two", to: "one", addr: uplink[family], seen: gateway[family], public: true},
		)
	}
	return append(list, probe{from: "", to: "one", addr: netip.MustParseAddr("127.0.0.1"), seen: gateway[0],
		public: true})
}

// run reports whether the conversation went as it should, and prints it.
func (p probe) run(proto string) bool {
	var answer string
	limit := patience
	if !p.seen.IsValid() {
		limit = moment
	}
	err := inside(p.from, func() error {
		var err error
		answer, err = ask(proto, p.address(), limit)
		return err
	})
	seen, parseErr := netip.ParseAddrPort(answer)
	ok := err == nil && parseErr == nil && seen.Addr().Unmap() == p.seen
	outcome := "seen as " + seen.Addr().Unmap().String()
	if err != nil {
		outcome = reason(err)
	}
	if !p.seen.IsValid() {
		ok = err != nil
	}
	mark := "ok   "
	if !ok {
		mark = "WRONG"
	}
	if ok && p.seen.IsValid() && p.to == "outside" {
		outcome += " (masqueraded)"
	}
	fmt.Printf("   %s  %-7s → %-7s  %s %-19s  %s\n", mark, place(p.from), place(p.to), proto, p.address(), outcome)
	return ok
}

func (p probe) address() string {
	if p.public {
		return netip.AddrPortFrom(p.addr, publicPort).String()
	}
	return netip.AddrPortFrom(p.addr, port).String()
}

func place(netns string) string {
	if netns == "" {
		return "host"
	}
	return netns
}

func reason(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}

// serve answers on TCP and UDP in a namespace until it is closed.
func serve(netns string) (func(), error) {
	var l net.Listener
	var u net.PacketConn
	err := inside(netns, func() (err error) {
		if l, err = net.Listen("tcp", fmt.Sprint(":", port)); err != nil {
			return err
		}
		u, err = net.ListenPacket("udp", fmt.Sprint(":", port))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serve in %s: %w", place(netns), err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, conn.RemoteAddr().String())
			_ = conn.Close()
		}
	}()
	go func() {
		buf := make([]byte, 16)
		for {
			_, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = u.WriteTo([]byte(from.String()), from)
		}
	}()
	return func() { _, _ = l.Close(), u.Close() }, nil
}

func ask(proto, address string, limit time.Duration) (string, error) {
	conn, err := net.DialTimeout(proto, address, limit)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	if proto == "udp" {
		if _, err := io.WriteString(conn, "?"); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 128)
	read, err := conn.Read(buf)
	return string(buf[:read]), err
}
