package tap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/tun"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestTap(t *testing.T) { nstest.RunSpecs(t, "plugins/main/tap/tap") }

// conf is a configuration of network "net": keys are added, or taken away by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "tap", "ipam": Object{"type": "fake"}}},
		more...)...)
}

var _ = Behaves(Fixture{
	Plugin:       Plugin().Untyped(),
	Conf:         conf(Object{"mtu": 1400, "owner": 107, "group": 108, "multiQueue": true}),
	Reference:    conf(Object{"cniVersion": "1.0.0", "owner": 107, "group": 108}),
	NoHostEnd:    true,
	NoNeighbor:   true,
	Shared:       true,
	ListEntries:  func(Attached) []string { return []string{"interface: eth0 type tun"} },
	InvalidKeys:  Object{"mtu": "x", "owner": -1, "group": "x", "bridge": 5, "dns": 5, "multiQueue": 7},
	ContraryKeys: Object{"owner": 1, "group": nil, "mtu": 1300, "bridge": "br9", "multiQueue": false},
	Drifts: map[string]Drift{
		"an interface of another kind": InContainer("ip link del eth0;ip link add eth0 type veth peer name x", `"eth0"`,
			`"veth"`),
		"another tap": InContainer("ip link del eth0;ip tuntap add eth0 mode tap;ip link set eth0 up",
			"multiQueue is false instead of true", "owner is 0 instead of 107", "group is 0 instead of 108"),
	},
})

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

// device is ip(8)'s view of a tap.
type device struct {
	Address, Master string
	MTU             int
	Linkinfo        struct {
		Kind string `json:"info_kind"`
		Data Object `json:"info_data"`
	}
}

func look(h *nstest.Host) device {
	GinkgoHelper()
	var links []device
	h.JSON(&links, "ip", "-j", "-d", "link", "show", "dev", "eth0")
	Expect(links).To(HaveLen(1))
	return links[0]
}

// open opens a container's tap as another program does, and returns an error of the kernel.
func open(h *nstest.Host, flags uint16) (*os.File, error) {
	GinkgoHelper()
	n := nstest.Must(ns.Open(h.Path))
	defer n.Close()
	f := nstest.Must(tun.Open(n))
	DeferCleanup(f.Close)
	_, err := tun.Create(f, "eth0", flags|unix.IFF_TAP|unix.IFF_NO_PI)
	return f, err
}

// openAs does what open does, as an ordinary user.
func openAs(h *nstest.Host, uid, gid uintptr) (err error) {
	GinkgoHelper()
	n := nstest.Must(ns.Open(h.Path))
	defer n.Close()
	f := nstest.Must(tun.Open(n))
	defer f.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var failed unix.Errno
		for _, c := range [][4]uintptr{{unix.SYS_SETGROUPS}, {unix.SYS_SETRESGID, gid, gid, gid},
			{unix.SYS_SETRESUID, uid, uid, uid}} {
			if _, _, errno := unix.RawSyscall(c[0], c[1], c[2], c[3]); errno != 0 {
				failed = errno
			}
		}
		if failed != 0 {
			done <- fmt.Errorf("another user: %w", failed)
			return
		}
		_, err := tun.Create(f, "eth0", unix.IFF_TAP|unix.IFF_NO_PI)
		done <- err
	}()
	return <-done
}

var _ = Describe("ADD", func() {
	var w *World
	var cont *nstest.Host
	BeforeEach(func() { w, cont = NewWorld(Plugin()), nstest.NewNetns() })

	DescribeTable("makes a persistent tap without packet information", func(keys, data Object) {
		res := w.Add(Call{Netns: cont.Path, Conf: conf(Object{"ipam": nil}, keys)})
		l := look(cont)
		Expect(l.Linkinfo.Kind).To(Equal("tun"))
		Expect(l.Linkinfo.Data).To(Equal(Merge(Object{"type": "tap", "pi": false, "vnet_hdr": false,
			"multi_queue": false, "persist": true}, data)))
		Expect(res.Interfaces).To(HaveLen(1))
		r := res.Interfaces[0]
		Expect([]any{r.Name, r.MAC, r.Sandbox, r.MTU}).To(Equal([]any{"eth0", l.Address, cont.Path, l.MTU}))
		Expect(Show(cont, "eth0").Flags).To(ContainElement("UP"))
		if keys["mtu"] != nil {
			Expect(l.MTU).To(Equal(keys["mtu"]))
		}
		if keys["mac"] != nil {
			Expect(l.Address).To(Equal(keys["mac"]))
		}
	},
		Entry("by default", Object{}, Object{}),
		Entry("with all keys", Object{"owner": 4107, "group": 4108, "mtu": 1400, "mac": "02:00:00:00:00:05",
			"multiQueue": true}, Object{"user": 4107., "group": 4108., "multi_queue": true, "numqueues": 0.,
			"numdisabled": 0.}),
		Entry("with an owner", Object{"owner": 4107, "mtu": 65521}, Object{"user": 4107.}),
		Entry("with a group", Object{"group": 4108, "mac": "02:00:00:00:00:05"}, Object{"group": 4108.}),
	)

	It("runs no program", func() {
		p := Call{Command: "ADD", Netns: cont.Path, Conf: conf(Object{"ipam": nil, "owner": 4107})}.Program(w,
			nstest.Build("tap"))
		p.Env = append(p.Env, "PATH=/nowhere")
		Expect(w.Run(p).Exit).To(BeZero())
	})

	It("of the reference plugin passes CHECK while no program has opened it", func() {
		w.LendAddrs("one", Addrs(2)...)
		c := Call{Command: "ADD", ID: "one", Netns: cont.Path, Conf: conf(Object{"cniVersion": "1.0.0"})}
		a := Attached{Host: cont, Call: c, Result: w.Reference(nstest.Newest(), c).Added()}
		Expect(Show(cont, "eth0").AddrInfo).To(ContainElement(HaveField("Tentative", BeTrue())))
		w.Succeeds(a.As("CHECK"))
	})

	DescribeTable("lets the owner and the group open it without CAP_NET_ADMIN, and no other user", func(keys Object,
		uid, gid uintptr, want error) {
		nstest.Need("realroot")
		w.Add(Call{Netns: cont.Path, Conf: conf(keys, Object{"ipam": nil})})
		Expect(openAs(cont, uid, gid)).To(Satisfy(func(err error) bool { return errors.Is(err, want) }))
	},
		Entry("the owner", Object{"owner": 4107}, uintptr(4107), uintptr(1), nil),
		Entry("the group", Object{"group": 4108}, uintptr(1), uintptr(4108), nil),
		Entry("the owner, of the group", Object{"owner": 4107, "group": 4108}, uintptr(4107), uintptr(4108), nil),
		Entry("another user", Object{"owner": 4107}, uintptr(4109), uintptr(4107), unix.EPERM),
		Entry("another group", Object{"group": 4108}, uintptr(4108), uintptr(1), unix.EPERM),
		Entry("anybody where neither is set, as the kernel has it", Object{}, uintptr(4107), uintptr(4108), nil),
	)

	It("passes frames between the container and who opens it", func() {
		w.LendAddrs("one", Addrs(2)...)
		w.Add(Call{ID: "one", Netns: cont.Path, Conf: conf()})
		f := nstest.Must(open(cont, 0))
		mac, _ := net.ParseMAC(look(cont).Address)
		cont.Start(nstest.Program{Path: "ping", Args: []string{"-W", "40", "10.1.0.9"}})
		frame := make([]byte, 2000)
		var n int
		for n < 42 || string(frame[12:14]) != "\x08\x06" { // until it asks by ARP
			n = nstest.Must(f.Read(frame))
		}
		Expect(frame[6:12]).To(Equal([]byte(mac)))
		Expect(frame[38:42]).To(Equal([]byte{10, 1, 0, 9}))
		peer := []byte{2, 0, 0, 0, 0, 9}
		reply := append(append(append([]byte{}, mac...), peer...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 2)
		reply = append(append(append(reply, peer...), 10, 1, 0, 9), append(mac, 10, 1, 0, 2)...)
		_, err := f.Write(reply)
		Expect(err).NotTo(HaveOccurred())
		Eventually(func() string { return cont.Cmd("ip", "neigh") }).Should(ContainSubstring("02:00:00:00:00:09"))
	})

	It("has as many queues as are opened with multiQueue", func() {
		w.Add(Call{Netns: cont.Path, Conf: conf(Object{"ipam": nil, "multiQueue": true})})
		for range 4 {
			_, err := open(cont, unix.IFF_MULTI_QUEUE)
			Expect(err).NotTo(HaveOccurred())
		}
		_, err := open(cont, 0)
		Expect(err).To(MatchError(unix.EINVAL))
	})

	It("makes it a port of a bridge in the container", func() {
		IP(cont, "link add br0 type bridge")
		c := Call{Netns: cont.Path, Conf: conf(Object{"ipam": nil, "bridge": "br0"})}
		res := w.Add(c)
		Expect(look(cont).Master).To(Equal("br0"))
		c.Command, c.Conf = "CHECK", With(c.Conf.(Object), res)
		w.Succeeds(c)
		IP(cont, "link set eth0 nomaster")
		Expect(w.Fails(c, cni.CodeDrift)).To(ContainSubstring("the index of its bridge is 0"))
	})

	DescribeTable("refuses", func(keys Object, code uint, says ...string) {
		IP(cont, "link add v0 type veth peer name v1")
		text := w.Fails(Call{Command: "ADD", Netns: cont.Path, Conf: conf(keys)}, code)
		for _, want := range says {
			Expect(text).To(ContainSubstring(want))
		}
		Expect(w.Calls()).To(BeEmpty(), "IPAM is not asked")
		Expect(Names(cont, "tun")).To(BeEmpty())
	},
		Entry("a bridge that is not there", Object{"bridge": "br9"}, cni.CodeConfig, `bridge: "br9"`, "no such"),
		Entry("a link that is not a bridge", Object{"bridge": "v0"}, cni.CodeConfig, `bridge: "v0" is not a bridge`),
		Entry("an invalid owner", Object{"owner": 4294967295}, cni.CodeConfig, "owner: 4294967295"),
		Entry("an invalid group", Object{"group": 4294967295}, cni.CodeConfig, "group: 4294967295"),
		Entry("a label where there is no SELinux", Object{"selinuxContext": "system_u:system_r:container_t:s0"},
			cni.CodeUnsupportedField, "selinuxContext", "container_t", "no SELinux"),
	)

	It("fails with code 2, and STATUS with 50, on a host without /dev/net/tun", func() {
		w.Cmd("mount", "-t", "tmpfs", "tmpfs", "/dev/net")
		c := Call{Command: "ADD", Netns: cont.Path, Conf: conf()}
		Expect(w.Exec(c).Failed(cni.CodeUnsupportedField)).To(ContainSubstring("/dev/net/tun"))
		Expect(w.Calls()).To(BeEmpty())
		c.Command = "STATUS"
		Expect(w.Exec(c).Failed(cni.CodeUnavailable)).To(ContainSubstring("/dev/net/tun"))
	})

	It("has STATUS 50 with a label where there is no SELinux", func() {
		Expect(w.Fails(Call{Command: "STATUS", Conf: conf(Object{"selinuxContext": "a:b:c"})}, cni.CodeUnavailable)).To(
			ContainSubstring("selinuxContext"))
	})

	It("can make it in a process of its own, as for a label", func() {
		n := nstest.Must(ns.Open(cont.Path))
		defer n.Close()
		f := nstest.Must(tun.Open(n))
		defer f.Close()
		create := func() error {
			own := process.Command{Path: nstest.Build("hawser"), Files: []*os.File{f}}
			return runCreateCommand(context.Background(), own, "eth0", unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_TUN_EXCL)
		}
		Expect(create()).To(Succeed())
		Expect(look(cont).Linkinfo.Data).To(HaveKeyWithValue("type", "tap"))
		Expect(create()).To(MatchError(unix.EEXIST))
	})
})

var _ = AutoMTU(Plugin().Untyped(), conf(), "tap", nil)
