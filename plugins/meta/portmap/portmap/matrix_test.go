package portmap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// The axes of the matrix.
var (
	netProtos = []string{"tcp", "udp"}
	hostIPs   = []string{"unset", "one address", "unspecified", "loopback"}
	sources   = []string{"outside", "host by own address", "host by loopback", "same container",
		"other container of the bridge", "container of another network",
		"outside through the node", "container through the node"}
)

// Results of a probe other than the source address that the server sees.
const (
	refused = "refused"
	silence = "silence"
)

// cell is one point of the matrix.
type cell struct {
	proto  string
	v6     bool
	hostIP string
	source string
}

func (c cell) String() string {
	return fmt.Sprintf("%s over %s, hostIP %s, from %s", c.proto, c.family("IPv4", "IPv6"), c.hostIP, c.source)
}

func (c cell) family(four, six string) string {
	if c.v6 {
		return six
	}
	return four
}

func cells() []cell {
	var out []cell
	for _, p := range netProtos {
		for _, v6 := range []bool{false, true} {
			for _, ip := range hostIPs {
				for _, s := range sources {
					out = append(out, cell{p, v6, ip, s})
				}
			}
		}
	}
	return out
}

// port is the host port of the cell's mapping, the same for every source. The container's is 1000 higher.
func (c cell) port() int {
	port := 8000
	for i, ip := range hostIPs {
		if ip == c.hostIP {
			port += i
		}
	}
	if c.v6 {
		port += 100
	}
	return port
}

// mapping is the mapping of the cell, as ports expects it.
func (c cell) mapping() string {
	host := map[string]string{"unset": "", "one address": c.family("192.0.2.1:", "[2001:db8::1]:"),
		"unspecified": c.family("0.0.0.0:", "[::]:"), "loopback": c.family("127.0.0.1:", "[::1]:")}[c.hostIP]
	return fmt.Sprintf("%s%d:%d/%s", host, c.port(), c.port()+1000, c.proto)
}

// setting is a combination of the other axes.
type setting struct {
	kind
	brNetfilter, hairpin bool
}

// expected is the address that the server sees, or another result.
func (c cell) expected(s setting) string {
	toLoopback := c.source == "host by loopback"
	gateway := c.family("10.1.0.1", "fd00:1::1")
	switch {
	case c.source == "outside through the node":
		return c.family("192.0.2.2", "2001:db8::2")
	case c.source == "container through the node":
		return c.family("10.1.0.2", "fd00:1::2")
	case toLoopback && c.v6 && c.hostIP != "one address" && s.name != "nftables":
		return silence // the reference's rules translate packets that cannot be forwarded
	case toLoopback && c.v6:
		return refused // IPv6 cannot forward from ::1
	case c.hostIP == "one address" && toLoopback, c.hostIP == "loopback" && !toLoopback:
		return refused
	case toLoopback:
		return gateway
	}
	switch c.source {
	case "outside":
		return c.family("192.0.2.2", "2001:db8::2")
	case "host by own address":
		return c.family("192.0.2.1", "2001:db8::1")
	case "container of another network":
		return c.family("10.2.0.2", "fd00:2::2")
	case "same container":
		if s.brNetfilter && !s.hairpin {
			return silence // the bridge does not send a frame back to its port
		}
	}
	return gateway
}

// topology is shared by all cells of a combination.
type topology struct {
	*world
	target, other, elsewhere *container
	third                    *nstest.Host // reached through the host
}

func newTopology(s setting) *topology {
	GinkgoHelper()
	t := &topology{world: newWorld()}
	t.SetBridgeNF(s.brNetfilter)
	t.target, t.other, t.elsewhere = t.container(1, 2), t.container(1, 3), t.container(2, 2)
	if s.hairpin {
		t.Cmd("ip", "link", "set", t.target.hostEnd, "type", "bridge_slave", "hairpin", "on")
	}
	t.third = nstest.NewHost()
	nstest.Wire(nstest.End{Host: t.Host, Name: "far", Addrs: []string{"198.51.100.1/24", "2001:db8:9::1/64"}},
		nstest.End{Host: t.third, Name: "eth0", Addrs: []string{"198.51.100.2/24", "2001:db8:9::2/64"}})
	t.third.Cmd("ip", "route", "add", "default", "via", "198.51.100.1")
	t.third.Cmd("ip", "route", "add", "default", "via", "2001:db8:9::1")
	var mappings []string
	seen := map[string]bool{}
	for _, c := range cells() {
		if seen[c.mapping()] {
			continue
		}
		seen[c.mapping()] = true
		mappings = append(mappings, c.mapping())
		any := c.family("0.0.0.0", "[::]")
		t.target.Serve(c.proto+c.family("4", "6"), fmt.Sprintf("%s:%d", any, c.port()+1000))
		t.third.Serve(c.proto+c.family("4", "6"), fmt.Sprintf("%s:%d", any, c.port()))
	}
	t.target.add(s.config, ports(mappings...))
	t.target.check(s.config, ports(mappings...))
	return t
}

// probeAll sends the requests of all cells, from all sources in parallel.
func (t *topology) probeAll(s setting) map[cell]string {
	GinkgoHelper()
	seen := map[cell]string{}
	var lock sync.Mutex
	nstest.AtOnce(len(sources), func(i int) {
		source := sources[i]
		for _, c := range cells() {
			if c.source != source {
				continue
			}
			limit := patience()
			if c.expected(s) == silence {
				limit = nstest.Patience(100 * time.Millisecond)
			}
			got := t.probe(c, limit)
			lock.Lock()
			seen[c] = got
			lock.Unlock()
		}
	})
	return seen
}

// probe sends the request of the cell.
func (t *topology) probe(c cell, limit time.Duration) string {
	GinkgoHelper()
	from, to := t.Host, c.family("192.0.2.1", "2001:db8::1")
	switch c.source {
	case "outside":
		from = t.out
	case "host by loopback":
		to = c.family("127.0.0.1", "::1")
	case "same container":
		from = t.target.Host
	case "other container of the bridge":
		from = t.other.Host
	case "container of another network":
		from = t.elsewhere.Host
	case "outside through the node":
		from, to = t.out, c.family("198.51.100.2", "2001:db8:9::2")
	case "container through the node":
		from, to = t.target.Host, c.family("198.51.100.2", "2001:db8:9::2")
	}
	return ask(from, c.proto, net.JoinHostPort(to, strconv.Itoa(c.port())), limit)
}

// ask returns the address that the server sees, or another result.
func ask(from *nstest.Host, proto, to string, limit time.Duration) string {
	GinkgoHelper()
	answer, err := from.AskWithin(limit, proto, to)
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused
	case errors.As(err, &timeout) && timeout.Timeout():
		return silence
	case err != nil:
		return err.Error()
	}
	host, _, err := net.SplitHostPort(answer)
	Expect(err).NotTo(HaveOccurred())
	return host
}

var _ = Describe("packets (CVE-2025-67499)", Label("kernel", "port-53"), func() {
	for _, k := range kinds {
		for _, brNetfilter := range []bool{false, true} {
			for _, hairpin := range []bool{false, true} {
				s := setting{k, brNetfilter, hairpin}
				name := fmt.Sprintf("on %s, br_netfilter %t, hairpinMode %t:", k.name, brNetfilter, hairpin)
				labels := Label()
				if brNetfilter != hairpin || k.variant == "legacy" && !hairpin {
					labels = Label("slow")
				}
				Context(name, labels, Ordered, ContinueOnFailure, func() {
					seen := map[cell]string{}
					BeforeAll(func() {
						nstest.UseVariant(k.variant)
						seen = newTopology(s).probeAll(s)
					})
					DescribeTable("have the expected source or result:", Label("host-port"), func(c cell, want string) {
						Expect(seen[c]).To(Equal(want))
					}, entries(s))
				})
			}
		}
	}
})

// entries are the specs of a combination.
func entries(s setting) []TableEntry {
	var out []TableEntry
	for _, c := range cells() {
		want := c.expected(s)
		out = append(out, Entry(c.String()+": "+want, c, want))
	}
	return out
}

// listen serves TCP inside until the end of the spec.
func listen(h *nstest.Host, address string) net.Listener {
	GinkgoHelper()
	var l net.Listener
	h.Do(func() { l = nstest.Must(net.Listen("tcp", address)) })
	DeferCleanup(func() { _ = l.Close() })
	return l
}

// word returns the answer of a TCP server.
func word(from *nstest.Host, to string) string {
	GinkgoHelper()
	answer, err := from.AskWithin(patience(), "tcp", to)
	if err != nil {
		return err.Error()
	}
	return answer
}

// stream is a sender of UDP that never pauses, from one port, until the end of the spec. It keeps the last answer.
type stream struct {
	conn net.Conn
	last atomic.Value
	got  atomic.Int64
}

// newStream starts a stream, which sends every few milliseconds.
func newStream(from *nstest.Host, to string) *stream {
	GinkgoHelper()
	s := &stream{}
	s.last.Store("")
	from.Do(func() { s.conn = nstest.Must(net.Dial("udp", to)) })
	stop := make(chan struct{})
	tick := time.NewTicker(5 * time.Millisecond)
	DeferCleanup(func() { close(stop); tick.Stop(); _ = s.conn.Close() })
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_, _ = s.conn.Write([]byte("?"))
			}
		}
	}()
	go func() {
		buf := make([]byte, 128)
		for {
			n, err := s.conn.Read(buf)
			select {
			case <-stop:
				return
			default:
			}
			if err == nil { // not the refusal of an earlier packet
				s.last.Store(string(buf[:n]))
				s.got.Add(1)
			}
		}
	}()
	return s
}

// hears waits until the stream receives this answer.
func (s *stream) hears(who string) {
	GinkgoHelper()
	Eventually(func() any { return s.last.Load() }).WithPolling(5 * time.Millisecond).Should(Equal(who))
}

// server answers each UDP packet with a word, except while it is quiet.
type server struct {
	sync.Mutex
	quiet bool
}

// hush stops or resumes the answers. When it returns, no answer is being sent.
func (s *server) hush(quiet bool) {
	s.Lock()
	defer s.Unlock()
	s.quiet = quiet
}

// answer starts a server that answers with a word.
func answer(h *nstest.Host, address, word string) *server {
	GinkgoHelper()
	s := &server{}
	var conn net.PacketConn
	h.Do(func() { conn = nstest.Must(net.ListenPacket("udp", address)) })
	DeferCleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			s.Lock()
			if !s.quiet {
				_, _ = conn.WriteTo([]byte(word), from)
			}
			s.Unlock()
		}
	}()
	return s
}

var _ = Describe("a UDP sender that never pauses", Label("kernel"), func() {
	for _, k := range kinds[:2] {
		for _, v6 := range []bool{false, true} {
			labels := Label()
			if v6 {
				labels = Label("slow")
			}
			Context("on "+k.name+" "+map[bool]string{false: "over IPv4", true: "over IPv6"}[v6], labels, func() {
				var w *world
				var a, b *container
				var onHost *server
				host, second := "192.0.2.1", "10.1.0.1"
				if v6 {
					host, second = "2001:db8::1", "fd00:1::1"
				}

				BeforeEach(func() {
					nstest.UseVariant(k.variant)
					w = newWorld()
					w.settle(k) // the kernel tracks no flows before there are rules
					a, b = w.container(1, 2), w.container(1, 3)
					answer(a.Host, net.JoinHostPort(a.addr(v6), "5353"), "a")
					answer(b.Host, net.JoinHostPort(b.addr(v6), "5353"), "b")
					onHost = answer(w.Host, net.JoinHostPort(host, "53"), "host")
					answer(w.Host, net.JoinHostPort(second, "53"), "host, second address")
				})

				// add publishes while the host is quiet. On a busy machine, a late answer of the host would
				// create the flow to the host again.
				add := func(c *container, s *stream, word string, mapping Object) {
					GinkgoHelper()
					onHost.hush(true)
					c.add(k.config, mapping)
					s.hears(word)
					onHost.hush(false)
				}

				It("reaches the new container, the host after DEL, and then the next container", func() {
					s := newStream(w.out, net.JoinHostPort(host, "53"))
					s.hears("host")
					for _, c := range []*container{a, b} {
						add(c, s, map[*container]string{a: "a", b: "b"}[c], ports("53:5353/udp"))
						c.del()
						s.hears("host")
					}
				})

				It("follows the port from a former owner to the next one", func() {
					a.add(k.config, ports("53:5353/udp"))
					s := newStream(w.out, net.JoinHostPort(host, "53"))
					s.hears("a")
					a.vanish()
					b.add(k.config, ports("53:5353/udp"))
					s.hears("b")
				})

				It("keeps its flow if it does not send to a host port", func() {
					third := nstest.NewHost()
					nstest.Wire(nstest.End{Host: w.Host, Name: "far",
						Addrs: []string{"198.51.100.1/24", "2001:db8:9::1/64"}},
						nstest.End{Host: third, Name: "eth0", Addrs: []string{"198.51.100.2/24", "2001:db8:9::2/64"}})
					third.IP("route add default via 198.51.100.1", "route add default via 2001:db8:9::1")
					far := map[bool]string{false: "198.51.100.2", true: "2001:db8:9::2"}[v6]
					answer(third, net.JoinHostPort(far, "53"), "third")
					answer(w.Host, net.JoinHostPort(host, "54"), "another port")
					through := newStream(w.out, net.JoinHostPort(far, "53"))
					elsewhere := newStream(w.out, net.JoinHostPort(second, "53"))
					other := newStream(w.out, net.JoinHostPort(host, "54"))
					direct := newStream(w.out, net.JoinHostPort(a.addr(v6), "5353"))
					ours := newStream(w.out, net.JoinHostPort(host, "53"))
					through.hears("third")
					elsewhere.hears("host, second address")
					other.hears("another port")
					direct.hears("a")
					ours.hears("host")
					spared := []string{"198.51.100.2", "2001:db8:9::2", "dport=54 ", "dport=5353 "}
					for _, mapping := range [][]string{{net.JoinHostPort(host, "53") + ":5353/udp"},
						{"53:5353/udp", "5353:5353/udp"}} {
						texts := spared
						if len(mapping) == 1 {
							texts = append(texts, second)
						}
						ids := flows(w, texts...)
						Expect(len(ids)).To(BeNumerically(">=", len(texts)-1))
						add(a, ours, "a", ports(mapping...))
						Expect(flows(w, texts...)).To(Equal(ids))
						a.del()
						ours.hears("host")
						Expect(flows(w, texts...)).To(Equal(ids))
					}
					for _, s := range []*stream{through, elsewhere, other, direct} {
						before := s.got.Load()
						Eventually(s.got.Load).Should(BeNumerically(">", before))
					}
				})
			})
		}
	}
})

// flows returns the IDs of the tracked flows whose description has one of the texts. A flow that was created again has
// another ID.
func flows(w *world, texts ...string) []string {
	GinkgoHelper()
	nstest.NeedProgram("conntrack")
	var ids []string
	for _, family := range []string{"ipv4", "ipv6"} {
		for line := range strings.Lines(w.Cmd("conntrack", "-L", "-p", "udp", "-f", family, "-o", "id")) {
			for _, t := range texts {
				if strings.Contains(original(line), t) {
					ids = append(ids, strings.TrimSpace(line[strings.LastIndex(line, "id="):]))
					break
				}
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// original returns the first half of a line of conntrack: the addresses of the sender.
func original(line string) string {
	first, _, _ := strings.Cut(line, "[ASSURED]")
	if at := strings.Index(first, " src="); at >= 0 {
		if end := strings.Index(first[at+1:], " src="); end >= 0 {
			return first[at : at+1+end+1]
		}
	}
	return first
}

var _ = It("the flow of a late answer of the host is deleted with the stale flow", func() {
	sender, host := netip.MustParseAddrPort("192.0.2.2:4711"), netip.MustParseAddrPort("192.0.2.1:53")
	asked := nft.Flow{Source: sender, Destination: host, ReplySource: host}
	answered := nft.Flow{Source: host, Destination: sender, ReplySource: sender}
	at := []hostPort{{Addr: host.Addr()}}
	isStale := staleFlows(func(netip.Addr) bool { return true })
	Expect(isStale(nil, answered)).To(BeFalse(), "a flow of the host's own")
	Expect(isStale(at, asked)).To(BeTrue())
	Expect(isStale(nil, answered)).To(BeTrue())
	asked.ReplySource = netip.MustParseAddrPort("10.1.0.2:5353")
	Expect(isStale(at, asked)).To(BeFalse(), "it already has the new target")
})
