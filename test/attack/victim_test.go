package attack_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// download is a TCP stream that continues until the end of the spec.
type download struct {
	from *net.TCPConn // the sender's end

	arrived  chan struct{} // after each arrival
	mu       sync.Mutex
	received int
	err      error
}

// startDownload has a server send to a client, about 500 segments a second on a fast machine. address is the server's
// address as the client uses it.
func startDownload(server *nstest.Host, listen string, client *nstest.Host, address string) *download {
	GinkgoHelper()
	d := &download{arrived: make(chan struct{}, 1)}
	var l net.Listener
	server.Do(func() { l = nstest.Must(net.Listen("tcp", listen)) })
	DeferCleanup(func() { _ = l.Close() })
	var to net.Conn
	// A single call, because an attempt that times out may also have reached the server.
	client.Do(func() { to = nstest.Must(net.DialTimeout("tcp", address, nstest.Patience(nstest.Hang))) })
	from := nstest.Must(l.Accept())
	DeferCleanup(func() { _ = errors.Join(from.Close(), to.Close()) })
	d.from = from.(*net.TCPConn)
	go func() {
		for tick := time.NewTicker(nstest.Patience(2 * time.Millisecond)); ; <-tick.C {
			if _, err := d.from.Write(make([]byte, 1000)); err != nil {
				return
			}
		}
	}()
	go func() {
		for buf := make([]byte, 1<<16); ; {
			n, err := to.Read(buf)
			d.mu.Lock()
			d.received, d.err = d.received+n, err
			d.mu.Unlock()
			select {
			case d.arrived <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	Expect(d.goesOn()).To(Succeed())
	return d
}

// goesOn returns an error if nothing more arrives, or if a segment was lost since the beginning. A segment that the
// receiver had twice was only late.
func (d *download) goesOn() error {
	before, _ := d.state()
	timeout := time.After(nstest.Patience(5 * time.Second))
	for now := before; now < before+3000; {
		select {
		case <-d.arrived:
		case <-timeout:
			return errors.New("nothing arrives")
		}
		var err error
		if now, err = d.state(); err != nil {
			return err
		}
	}
	// A segment that was only late counts as lost until the receiver's report of the second copy arrives.
	for late := time.After(nstest.Patience(soon)); d.lost() > 0; {
		select {
		case <-d.arrived:
		case <-late:
			return fmt.Errorf("lost %d segments", d.lost())
		}
	}
	return nil
}

func (d *download) state() (received int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.received, d.err
}

func (d *download) lost() int {
	raw := nstest.Must(d.from.SyscallConn())
	var info *unix.TCPInfo
	Expect(raw.Control(func(fd uintptr) {
		info = nstest.Must(unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO))
	})).To(Succeed())
	return max(0, int(info.Total_retrans)-int(info.Dsack_dups))
}

// neighbor is a container of another network that a tenant attacks, on a node with a router.
type neighbor struct {
	*Pod
	node   *World
	list   List
	router *nstest.Host
	server string // in the internet
	// inward is a stream through the host port, outward one from the internet.
	inward, outward *download
}

// newNeighbor attaches a container with a host port by the plugins of w, and starts a download through the host port
// and one from the internet.
func newNeighbor(w *World, list List) *neighbor {
	GinkgoHelper()
	v := &neighbor{Pod: NewPod("victim"), node: w, list: list, router: nstest.NewOutside(w.Host)}
	v.Network = "cluster"
	w.IP("route add default via 192.0.2.2", "route add default via 2001:db8::2")
	v.server = v.router.Serve("tcp", "192.0.2.2:0")
	w.Up(v.Pod, list)
	v.Serve("tcp", v.Addr()+":81")
	v.Serve("tcp", "[fd00:88::2]:81")
	w.Serve("tcp", "127.0.0.1:80")
	v.inward = startDownload(v.Host, v.Addr()+":80", v.router, "192.0.2.1:8080")
	v.outward = startDownload(v.router, "192.0.2.2:999", v.Host, "192.0.2.2:999")
	return v
}

// The harms of an attack, the most severe first.
const (
	nodeOff  = "the node is cut off from its router"
	cutOff   = "the container is cut off"
	noIPv6   = "the container's network loses IPv6"
	opened   = "a host port forwards to a foreign server"
	localnet = "other machines may send to the node's loopback"
	lost     = "an open connection of the container loses packets"
	changed  = "the container's rules or interfaces are changed"
	noNext   = "the next container of the network is refused"
	nextOff  = "the next container of the network is cut off"
)

// soon is longer than any answer takes under load, before nstest.Patience.
const soon = 5 * time.Second

// foreignPort is a host port that only an attack can open.
const foreignPort = 9090

// harm lists the harms to the victim and to the node, the most severe first.
func (v *neighbor) harm() (list []string) {
	GinkgoHelper()
	ask := func(from *nstest.Host, address string) func() error {
		return func() error {
			_, err := from.AskWithin(nstest.Patience(soon), "tcp", address)
			return err
		}
	}
	all := []struct {
		harm string
		try  func() error
	}{
		{nodeOff, ask(v.node.Host, v.server)},
		{cutOff, ask(v.Host, v.server)}, {cutOff, ask(v.node.Host, v.Addr()+":81")}, {cutOff, v.dial(8080)},
		{noIPv6, ask(v.node.Host, "[fd00:88::2]:81")},
		{opened, func() error {
			if v.dial(foreignPort)() == nil {
				return errors.New("the port is open")
			}
			return nil
		}},
		{localnet, func() error {
			if v.node.Sysctl("net/ipv4/conf/ext/route_localnet") != "0" {
				return errors.New("route_localnet of the uplink is 1")
			}
			return nil
		}},
		{lost, v.inward.goesOn}, {lost, v.outward.goesOn},
		{changed, func() error {
			if a := v.node.Chain("CHECK", v.Pod, v.list); a.Code != 0 {
				return errors.New(a.Stdout)
			}
			return nil
		}},
	}
	found := make([]error, len(all))
	nstest.AtOnce(len(all), func(i int) { found[i] = all[i].try() })
	for i, err := range found {
		if err != nil {
			GinkgoWriter.Println(all[i].harm, err)
		}
		if err != nil && !slices.Contains(list, all[i].harm) {
			list = append(list, all[i].harm)
		}
	}
	return list
}

// nextHarm attaches the next container of the victim's network, and lists the harm to it.
func (v *neighbor) nextHarm() []string {
	GinkgoHelper()
	next := NewPod("next")
	next.Network = v.Network
	if a := v.node.Chain("ADD", next, v.list.Port(nextPort)); a.Code != 0 {
		GinkgoWriter.Println(a.Stdout)
		return []string{noNext}
	}
	next.Serve("tcp", next.Addr()+":81")
	if _, err := v.node.AskWithin(nstest.Patience(soon), "tcp", next.Addr()+":81"); err != nil {
		GinkgoWriter.Println(err)
		return []string{nextOff}
	}
	return nil
}

// dial returns a function that connects to a port of the node from outside.
func (v *neighbor) dial(port int) func() error {
	return func() (err error) {
		v.router.Do(func() {
			var conn net.Conn
			address := fmt.Sprintf("192.0.2.1:%d", port)
			if conn, err = net.DialTimeout("tcp", address, nstest.Patience(soon)); err == nil {
				err = conn.Close()
			}
		})
		return err
	}
}
