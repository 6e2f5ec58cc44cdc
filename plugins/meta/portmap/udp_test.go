package main

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// stream is a sender of UDP that never pauses, from one port, until the end of
// the spec. It keeps who answered last.
type stream struct {
	conn net.Conn
	last atomic.Value
	got  atomic.Int64
}

// stream sends every few milliseconds.
func newStream(from *nstest.Host, to string) *stream {
	GinkgoHelper()
	s := &stream{}
	s.last.Store("")
	from.Do(func() {
		var err error
		s.conn, err = net.Dial("udp", to)
		Expect(err).NotTo(HaveOccurred())
	})
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
			if err == nil { // not the refusal of a packet before
				s.last.Store(string(buf[:n]))
				s.got.Add(1)
			}
		}
	}()
	return s
}

// hears waits until the stream is answered by this one.
func (s *stream) hears(who string) {
	GinkgoHelper()
	Eventually(func() any { return s.last.Load() }).WithPolling(5 * time.Millisecond).Should(Equal(who))
}

// server answers every UDP packet with a word, but while it is quiet.
type server struct {
	sync.Mutex
	quiet bool
}

// hush ends the answers: none is on its way any more.
func (s *server) hush(quiet bool) {
	s.Lock()
	defer s.Unlock()
	s.quiet = quiet
}

// answer starts a server.
func answer(h *nstest.Host, address, word string) *server {
	GinkgoHelper()
	s := &server{}
	var conn net.PacketConn
	h.Do(func() {
		var err error
		conn, err = net.ListenPacket("udp", address)
		Expect(err).NotTo(HaveOccurred())
	})
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
			Context("on "+k.name+" "+map[bool]string{false: "over IPv4", true: "over IPv6"}[v6], func() {
				var w *world
				var a, b *container
				var onHost *server
				host, second := "192.0.2.1", "10.1.0.1"
				if v6 {
					host, second = "2001:db8::1", "fd00:1::1"
				}

				BeforeEach(func() {
					useVariant(k.variant)
					w = newWorld()
					w.settle(k) // the kernel tracks no flows before there are rules
					a, b = w.container(1, 2), w.container(1, 3)
					answer(a.Host, net.JoinHostPort(a.addr(v6), "5353"), "a")
					answer(b.Host, net.JoinHostPort(b.addr(v6), "5353"), "b")
					onHost = answer(w.Host, net.JoinHostPort(host, "53"), "host")
					answer(w.Host, net.JoinHostPort(second, "53"), "host, second address")
				})

				// add publishes while the host is quiet: an answer that comes late, on a busy machine, would make
				// the flow to the host again.
				add := func(c *container, s *stream, word string, mapping Object) {
					GinkgoHelper()
					onHost.hush(true)
					c.add(k.config, mapping)
					s.hears(word)
					onHost.hush(false)
				}

				It("reaches the new container, goes back to the host after DEL, and reaches the next one", func() {
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

				It("is let alone where it is none of ours", func() {
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

// flows are the numbers of the tracked flows whose description has one of the
// texts: a flow that was deleted comes back with another.
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

// original is the first half of a line of conntrack: what the sender wrote.
func original(line string) string {
	first, _, _ := strings.Cut(line, "[ASSURED]")
	if at := strings.Index(first, " src="); at >= 0 {
		if end := strings.Index(first[at+1:], " src="); end >= 0 {
			return first[at : at+1+end+1]
		}
	}
	return first
}

var _ = It("an answer of the host that makes a flow again is cut with it", func() {
	sender, host := netip.MustParseAddrPort("192.0.2.2:4711"), netip.MustParseAddrPort("192.0.2.1:53")
	asked := nft.Flow{Source: sender, Destination: host, ReplySource: host}
	answered := nft.Flow{Source: host, Destination: sender, ReplySource: sender}
	at := []hostPort{{Addr: host.Addr()}}
	isOld := outdated(func(netip.Addr) bool { return true })
	Expect(isOld(nil, answered)).To(BeFalse(), "a flow of the host's own")
	Expect(isOld(at, asked)).To(BeTrue())
	Expect(isOld(nil, answered)).To(BeTrue())
	asked.ReplySource = netip.MustParseAddrPort("10.1.0.2:5353")
	Expect(isOld(at, asked)).To(BeFalse(), "it has taken the new way")
})
