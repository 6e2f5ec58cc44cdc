package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// A container with CAP_NET_ADMIN may send to our sockets in its namespace.
var _ = DescribeTable("what a process of the container sends to our sockets is not taken for the kernel's answer",
	Label("forged-netlink"), func(messages int) {
		nstest.NewNetns().Do(func() {
			l := nstest.Must(dialAmong(messages).Link("lo"))
			Expect(l.Index).To(Equal(1))
			alias := "ours"
			Expect(dialAmong(messages).SetLink(1, LinkChange{Alias: &alias})).To(Succeed())
			Expect(dialAmong(messages).AddAddr(1, Addr{Prefix: netip.MustParsePrefix("127.0.0.2/8")})).To(Succeed())
			l = nstest.Must(dialAmong(messages).LinkByIndex(1))
			Expect(l.Alias).To(Equal("ours"))
			Expect(dialAmong(messages).Addrs(1)).To(
				ContainElement(HaveField("Prefix", netip.MustParsePrefix("127.0.0.2/8"))))

			By("an error if a link is created, because another process may have created it")
			c := dialAmong(messages)
			err := c.AddLink(NewLink{Kind: "veth", Name: "one", Peer: Peer{Name: "two"}})
			Expect(err).To(HaveOccurred())
			Expect(err).NotTo(MatchError(unix.EEXIST))
			Expect(c.Link("one")).To(HaveField("Kind", "veth"))

			By("an error where another link has the name")
			index := nstest.Must(c.Link("one")).Index
			Expect(dialAmong(messages).SetLink(index, LinkChange{Name: "two"})).To(MatchError(unix.EEXIST))
			Expect(dialAmong(messages).SetLink(index, LinkChange{Name: "three"})).To(Succeed())
			Expect(c.LinkByIndex(index)).To(HaveField("Name", "three"))
		})
	},
	Entry("an answer", 1),
	Entry("so many that the kernel's do not fit", 2000),
)

var _ = It("a socket that is disturbed for too long says that another call may succeed", func() {
	nstest.NewNetns().Do(func() {
		c := dialAmong(1)
		err := c.retryFor(0, func(h *netlink.Handle) error {
			_, err := h.LinkByName("lo")
			return err
		})
		Expect(err).To(MatchError(ContainSubstring("Wrong sender portid")))
		Expect(cni.Transient(err)).To(BeTrue(), err.Error())
	})
})

// As IPv6 is with ipv6.disable=1.
var _ = It("of a family that the kernel has not there are no routes", func() {
	nstest.NewNetns().Do(func() {
		c := nstest.Must(Dial(nil))
		DeferCleanup(c.Close)
		up := true
		Expect(c.SetLink(1, LinkChange{Up: &up})).To(Succeed())
		Expect(c.dumpRoutes(unix.AF_INET)).NotTo(BeEmpty())
		Expect(c.dumpRoutes(unix.AF_APPLETALK)).To(BeEmpty())
	})
})

// failing returns the error of call, which runs on a thread whose system calls of one kind fail.
func failing(number uint32, errno unix.Errno, call func() error) (err error) {
	GinkgoHelper()
	done := make(chan error, 1)
	go func() { // on a thread that ends with it
		runtime.LockOSThread()
		defer close(done) // if FailCall skips the spec, nothing is sent
		defer GinkgoRecover()
		nstest.FailCall(number, errno)
		done <- call()
	}()
	Eventually(done).Should(Receive(&err))
	return err
}

var _ = It("a kernel without memory for the request is not asked until the time is up", func() {
	nstest.NewNetns().Do(func() {
		c := nstest.Must(Dial(nil))
		DeferCleanup(c.Close)
		err := failing(unix.SYS_SENDTO, unix.ENOBUFS, func() error {
			return c.retryFor(time.Hour, func(h *netlink.Handle) error {
				_, err := h.LinkByIndex(1)
				return err
			})
		})
		Expect(err).To(MatchError(unix.ENOBUFS))
		Expect(cni.Transient(err)).To(BeTrue(), err.Error())
	})
})

var _ = It("a request that is refused as busy, and is no list, leaves the socket open", func() {
	nstest.NewNetns().Do(func() {
		c := nstest.Must(Dial(nil))
		DeferCleanup(c.Close)
		raw := c.raw
		add := func() error { return c.AddAddrCopy(1, AddrCopy{}) }
		Expect(failing(unix.SYS_SENDTO, unix.EBUSY, add)).To(MatchError(unix.EBUSY))
		Expect(c.raw).To(BeIdenticalTo(raw))
	})
})

var _ = It("calls after a socket could not be opened report the reason", func() {
	read := func() error {
		_, err := Host().Link("lo")
		return err
	}
	Expect(failing(unix.SYS_SOCKET, unix.ENOBUFS, read)).To(MatchError(unix.ENOBUFS))
})

var _ = It("a list that changes all the time is read with pauses, and not for ever", func() {
	nstest.NewNetns().Do(func() {
		c := nstest.Must(Dial(nil))
		DeferCleanup(c.Close)
		calls := 0
		err := c.retryFor(200*time.Millisecond, func(*netlink.Handle) error {
			calls++
			return netlink.ErrDumpInterrupted
		})
		Expect(err).To(MatchError(netlink.ErrDumpInterrupted))
		Expect(cni.Transient(err)).To(BeTrue(), err.Error())
		Expect(calls).To(And(BeNumerically(">", freeCalls), BeNumerically("<", 30)))
	})
})

// dialAmong dials in the thread's namespace and sends messages to the sockets.
func dialAmong(messages int) *Conn {
	GinkgoHelper()
	others := ports()
	c := nstest.Must(Dial(nil))
	DeferCleanup(c.Close)
	ours := 0
	for port := range ports() {
		if others[port] {
			continue
		}
		ours++
		forge(port, slices.Repeat([][]byte{forgedLink()}, messages)...)
	}
	Expect(ours).To(Equal(2))
	return c
}

// forge sends messages to the socket with a port number.
func forge(port uint32, messages ...[]byte) {
	GinkgoHelper()
	forger, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	Expect(err).NotTo(HaveOccurred())
	defer unix.Close(forger)
	for _, m := range messages {
		err := unix.Sendto(forger, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port})
		Expect(err).To(Or(Succeed(), MatchError(unix.EAGAIN))) // the latter: no more fits
	}
}

// ports are the port numbers of our process's netlink sockets.
func ports() map[uint32]bool {
	found := map[uint32]bool{}
	for fd := range 1024 {
		if address, err := unix.Getsockname(fd); err == nil {
			if n, ok := address.(*unix.SockaddrNetlink); ok {
				found[n.Pid] = true
			}
		}
	}
	return found
}

// forgedLink answers the first request of a socket with a link #77.
func forgedLink() []byte {
	link := append(header(unix.AF_UNSPEC, 77).Serialize(), 7, 0, unix.IFLA_IFNAME, 0, 'l', 'o', 0, 0)
	answer := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(link)))
	answer = binary.NativeEndian.AppendUint16(answer, unix.RTM_NEWLINK)
	answer = append(answer, 0, 0)
	answer = binary.NativeEndian.AppendUint32(answer, 1) // the number of the request
	return append(append(answer, 0, 0, 0, 0), link...)
}

var _ = It("a message that another process sends is no event", Label("forged-netlink"), func() {
	nstest.NewHost().Do(func() {
		c := nstest.Must(Dial(nil))
		DeferCleanup(c.Close)
		ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(nstest.Hang))
		defer cancel()
		others, looks := ports(), 0
		Expect(c.wait(ctx, 1, func() (string, error) {
			looks++
			switch looks {
			case 1: // before the subscription
			case 2:
				routeWithoutBody := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr)
				routeWithoutBody = binary.NativeEndian.AppendUint16(routeWithoutBody, unix.RTM_NEWROUTE)
				routeWithoutBody = append(routeWithoutBody, make([]byte, 10)...)
				tooLong := append([]byte{255}, routeWithoutBody[1:]...)
				for port := range ports() {
					if !others[port] {
						forge(port, routeWithoutBody, []byte{0}, tooLong)
					}
				}
			case 3, 4: // because of the malformed ones
			default:
				return "", nil
			}
			if looks == 4 {
				alias := "event"
				Expect(c.SetLink(1, LinkChange{Alias: &alias})).To(Succeed())
			}
			return fmt.Sprintf("look %d", looks+1), nil
		})).To(Succeed())
		Expect(looks).To(Equal(5))
	})
})

// A port of a bridge or of a bond that is hardware has a kind of port, but none of its own.
var _ = It("the summary of hardware that is a port has no kind", func() {
	linkInfo := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	linkInfo.AddRtAttr(unix.IFLA_INFO_SLAVE_KIND, nl.ZeroTerminated("bond"))
	answer := header(unix.AF_UNSPEC, 7).Serialize()
	for _, a := range []*nl.RtAttr{nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("eth0")),
		nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(8)), linkInfo} {
		answer = append(answer, a.Serialize()...)
	}
	Expect(readSummary(answer)).To(Equal(Link{Index: 7, Name: "eth0", Master: 8}))
})

var _ = Describe("events that overran the socket", func() {
	It("are a reason to look again", func() {
		nstest.NewHost().Do(func() {
			c := nstest.Must(Dial(nil))
			defer c.Close()
			ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(nstest.Hang))
			defer cancel()
			looks := 0
			Expect(c.wait(ctx, 1, func() (string, error) {
				looks++
				switch looks {
				case 1: // before the subscription
				case 2:
					for i := range 1000 {
						alias := fmt.Sprint(i)
						Expect(c.SetLink(1, LinkChange{Alias: &alias})).To(Succeed())
					}
				default:
					return "", nil
				}
				return "the third look", nil
			})).To(Succeed())
		})
	})
})
