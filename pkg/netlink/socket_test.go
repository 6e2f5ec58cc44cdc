package netlink

import (
	"errors"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// getLink asks for a link by its name.
func getLink(name string) Request {
	body := Body(make([]byte, unix.SizeofIfInfomsg))
	body.Text(unix.IFLA_IFNAME, name)
	return Request{Type: unix.RTM_GETLINK, Body: body}
}

func linkName(m Message) string {
	return Text(Attribute(m.Data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME))
}

// inHost runs fn with a socket in a new namespace that has links a0 to a9.
func inHost(fn func(*nstest.Host, *Socket)) {
	GinkgoHelper()
	h := nstest.NewHost()
	for _, name := range []string{"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"} {
		h.Cmd("ip", "link", "add", name, "type", "bridge")
	}
	h.Do(func() {
		s, err := Open(unix.NETLINK_ROUTE)
		Expect(err).NotTo(HaveOccurred())
		defer s.Close()
		fn(h, s)
	})
}

var _ = Describe("a socket", func() {
	It("sends several requests at once and tells their answers apart", func() {
		inHost(func(_ *nstest.Host, s *Socket) {
			answers := map[int]string{}
			ask := func(names ...string) {
				GinkgoHelper()
				clear(answers)
				var reqs []Request
				for _, name := range names {
					reqs = append(reqs, getLink(name))
				}
				Expect(s.Exchange(reqs, func(i int, m Message) {
					if err := m.Err(); err != nil {
						answers[i] = err.Error()
						return
					}
					answers[i] += linkName(m)
				})).To(Succeed())
			}
			ask("a1", "none", "a2")
			Expect(answers).To(Equal(map[int]string{0: "a1", 1: "no such device", 2: "a2"}))
			ask("none", "a3", "none")
			Expect(answers).To(Equal(map[int]string{0: "no such device", 1: "a3", 2: "no such device"}))
		})
	})

	It("lists again after a list of which a part was lost", func() {
		inHost(func(_ *nstest.Host, s *Socket) {
			names := []string{}
			list := func() error {
				req := Request{Type: unix.RTM_GETLINK, Body: make([]byte, unix.SizeofIfInfomsg)}
				return s.Dump(req, func() { names = names[:0] }, func(m Message) { names = append(names, linkName(m)) })
			}
			s.buf = make([]byte, 512)
			Expect(list()).To(MatchError(unix.EMSGSIZE))
			s.buf = nil
			Expect(list()).To(Succeed())
			Expect(names).To(ContainElements("lo", "a0", "a9"))
		})
	})

	It("lists, and starts anew when what it lists changes", func() {
		inHost(func(h *nstest.Host, s *Socket) {
			starts, names := 0, []string{}
			req := Request{Type: unix.RTM_GETLINK, Body: make([]byte, unix.SizeofIfInfomsg)}
			list := func(each func()) error {
				return s.Dump(req, func() { starts, names = starts+1, names[:0] }, func(m Message) {
					each()
					names = append(names, linkName(m))
				})
			}
			Expect(list(func() {})).To(Succeed())
			Expect(names).To(ContainElements("lo", "a0", "a9"))
			Expect(starts).To(Equal(1))
			for i := range 60 { // more than one part
				h.Cmd("ip", "link", "add", fmt.Sprint("b", i), "type", "bridge")
			}
			changed := false
			starts = 0
			Expect(list(func() {
				if !changed {
					changed = true
					h.Cmd("ip", "link", "add", "late", "type", "bridge")
				}
			})).To(Succeed())
			Expect(starts).To(Equal(2))
			Expect(names).To(ContainElement("late"))
		})
	})

	It("says that there was no answer instead of waiting for one", func() {
		inHost(func(_ *nstest.Host, s *Socket) {
			noop := Request{Type: unix.NLMSG_NOOP, Body: make([]byte, 4)}
			Expect(s.Exchange([]Request{noop}, func(int, Message) {})).To(MatchError(ErrNoAnswer))
			noop.Quiet = true
			Expect(s.Exchange([]Request{noop}, func(int, Message) {})).To(Succeed())
		})
	})

	It("returns the kernel's answer to a change", func() {
		inHost(func(h *nstest.Host, s *Socket) {
			del := getLink("a0")
			del.Type = unix.RTM_DELLINK
			Expect(s.Do(del)).To(Succeed())
			Expect(h.Cmd("ip", "-br", "link")).NotTo(MatchRegexp(`(?m)^a0 `))
			Expect(s.Do(del)).To(MatchError(unix.ENODEV))
			del.Body = make([]byte, 400)
			var errno unix.Errno
			Expect(errors.As(s.Do(del), &errno)).To(BeTrue())
		})
	})

	It("raises its buffer for what does not fit", func() {
		inHost(func(_ *nstest.Host, s *Socket) {
			Expect(unix.SetsockoptInt(s.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 4096)).To(Succeed())
			var reqs []Request
			for range 200 {
				reqs = append(reqs, getLink("a1"))
			}
			reqs[0].Body.Bytes(unix.IFLA_PHYS_PORT_NAME, make([]byte, 60000))
			for i := 1; i < 199; i++ {
				reqs[i] = Request{Type: unix.NLMSG_NOOP, Body: make([]byte, 64), Quiet: true}
			}
			reqs[0].Quiet = true
			got := 0
			Expect(s.Exchange(reqs, func(i int, m Message) {
				if i == 199 && m.Err() == nil {
					got++
				}
			})).To(Succeed())
			Expect(got).To(Equal(1))
			Expect(s.SendBuffer()).To(BeNumerically(">", 60000))
		})
	})
})
