package tcredirecttap

import (
	"fmt"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/tun"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestTCRedirectTap(t *testing.T) {
	nstest.RunSpecs(t, "plugins/meta/tc-redirect-tap/tcredirecttap")
}

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

// vm is a container on a bridge whose gateway is the host.
type vm struct {
	*World
	Attached
}

var dual = []string{"10.1.0.2/24 10.1.0.1", "2001:db8:1::2/64 2001:db8:1::1"}

func newWorld() *World {
	GinkgoHelper()
	nstest.Need("tap")
	nstest.NeedProgram("tc")
	return NewWorld(Plugin())
}

func newVM(keys Object) vm {
	GinkgoHelper()
	w := newWorld()
	a := w.AttachBehind("vm1", "net", keys, dual...)
	w.Host.IP("addr add 10.1.0.1/24 dev br-net", "addr add 2001:db8:1::1/64 dev br-net nodad")
	return vm{w, a}
}

// before attaches a container with bridge and returns the call for tc-redirect-tap.
func before(w *World, keys Object) (Call, *nstest.Host) {
	GinkgoHelper()
	a := w.AttachBehind("vm1", "net", nil, dual...)
	w.Succeeds(a.As("DEL"))
	c := a.Call
	c.Conf = Merge(c.Conf.(Object), keys)
	return c, a.Host
}

// state returns the objects of tc-redirect-tap in the container, and the records.
func state(w *World, cont *nstest.Host) string {
	GinkgoHelper()
	return fmt.Sprint(Names(cont, ""), w.Records(recordDir)) + cont.Cmd("tc", "qdisc", "show", "dev", "eth0")
}

// boot returns a guest that stands in for a virtual machine: it copies frames between the tap and its eth0.
func boot(cont *nstest.Host, tap, mac string, addrs ...string) *nstest.Host {
	GinkgoHelper()
	guest := nstest.NewNetns()
	guest.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	ends := [2]*os.File{}
	for i, h := range []*nstest.Host{cont, guest} {
		n := nstest.Must(ns.Open(h.Path))
		defer n.Close()
		ends[i] = nstest.Must(tun.Open(n))
		name := nstest.Must(tun.Create(ends[i], []string{tap, "eth0"}[i],
			unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_VNET_HDR))
		Expect(name).To(Equal([]string{tap, "eth0"}[i]))
		Expect(unix.SetNonblock(int(ends[i].Fd()), true)).To(Succeed()) // so that Close ends a Read
		ends[i] = os.NewFile(uintptr(nstest.Must(unix.Dup(int(ends[i].Fd())))), tap)
		DeferCleanup(ends[i].Close)
	}
	guest.IP("link set eth0 address " + mac)
	IP(guest, "link set eth0 up")
	for _, a := range addrs {
		nodad := ""
		if strings.Contains(a, ":") {
			nodad = " nodad"
		}
		IP(guest, "addr add %s dev eth0%s", a, nodad)
	}
	for i := range ends {
		go func() {
			frame := make([]byte, 65562)
			for {
				n, err := ends[i].Read(frame)
				if err != nil {
					return
				}
				_, _ = ends[1-i].Write(frame[:n])
			}
		}()
	}
	return guest
}

// vmConf is the part of a result that the Go SDK of Firecracker reads: the virtual machine's interface, whose sandbox
// is the container ID; the tap, which has the same name and a namespace path as its sandbox; and the addresses of the
// virtual machine's interface, of which the SDK uses one.
func vmConf(r Result, id string) (tap, netns, mac string, ips, gateways []string) {
	GinkgoHelper()
	vms := 0
	for _, i := range r.Interfaces {
		if i.Sandbox == id {
			vms, tap, mac = vms+1, i.Name, i.MAC
		}
	}
	Expect(vms).To(Equal(1))
	taps := 0
	for _, i := range r.Interfaces {
		if i.Sandbox != id && i.Name == tap {
			taps, netns = taps+1, i.Sandbox
		}
	}
	Expect(taps).To(Equal(1))
	for _, ip := range r.IPs {
		if i := r.Interfaces[*ip.Interface]; i.Name == tap && i.Sandbox == id {
			ips, gateways = append(ips, ip.Address), append(gateways, ip.Gateway)
		}
	}
	return tap, netns, mac, ips, gateways
}

var _ = Describe("ADD", func() {
	It("gives a virtual machine the container's network, both families", Label("redirect"), func() {
		v := newVM(nil)
		tap, _, mac, ips, _ := vmConf(v.Result, "vm1")
		guest := boot(v.Attached.Host, tap, mac, ips...)
		for _, address := range []string{"10.1.0.1", "2001:db8:1::1"} {
			Expect(Ping(guest, address)).To(BeTrue(), address)
		}
		for _, address := range []string{"10.1.0.2", "2001:db8:1::2"} {
			Expect(Ping(v.World.Host, address)).To(BeTrue(), address)
		}
		v.Succeeds(v.As("CHECK"))
		v.Succeeds(v.As("DEL"))
		Expect(Ping(v.Attached.Host, "10.1.0.1")).To(BeTrue(), "the container itself")
	})

	DescribeTable("returns what Firecracker's Go SDK expects, in the asked version", Label("redirect-result"), func(
		version string,
	) {
		w := newWorld()
		c, cont := before(w, Object{"cniVersion": version})
		r := w.Add(c)
		Expect(r.CNIVersion).To(Equal(version))
		tap, netns, mac, ips, gateways := vmConf(r, "vm1")
		Expect(tap).To(Equal("tap0"))
		Expect(netns).To(Equal(cont.Path))
		Expect(mac).To(Equal(Show(cont, "eth0").Address))
		Expect(ips).To(Equal([]string{"10.1.0.2/24", "2001:db8:1::2/64"}))
		Expect(gateways).To(Equal([]string{"10.1.0.1", "2001:db8:1::1"}))
		own := Show(cont, "tap0")
		Expect(r.Interfaces[len(r.Interfaces)-2].MAC).To(Equal(own.Address))
		Expect(own.Address).NotTo(Equal(mac))
		Expect(own.MTU).To(Equal(Show(cont, "eth0").MTU))
		Expect(own.Flags).To(ContainElement("UP"))
		Expect(len(r.IPs)).To(Equal(4), "those of eth0 stay")
		w.Succeeds(Call{Command: "CHECK", ID: "vm1", Netns: cont.Path, Conf: With(c.Conf.(Object), r)})
	},
		Entry("0.4.0", "0.4.0"), Entry("1.0.0", "1.0.0"), Entry("1.1.0", "1.1.0"))

	It("serves lists of 0.3.x", func() {
		w := newWorld()
		c, _ := before(w, Object{"cniVersion": "0.3.1"})
		vmConf(w.Add(c), "vm1")
	})

	DescribeTable("with vm_ips gives the machine one address, which the SDK needs", Label("redirect-result"), func(
		want string, addrs ...string,
	) {
		w := newWorld()
		a := w.AttachBehind("vm1", "net", Object{"vm_ips": "first"}, addrs...)
		_, _, _, ips, _ := vmConf(a.Result, "vm1")
		Expect(ips).To(Equal([]string{want}))
		w.Succeeds(a.As("CHECK"))
	},
		Entry("IPv4 where there is one", "10.1.0.2/24", dual[1], dual[0]),
		Entry("or else IPv6", "2001:db8:1::2/64", dual[1]))

	DescribeTable("lets a user and a group open the tap", func(args string, keys Object, name string, uid, gid any) {
		w := newWorld()
		c, cont := before(w, keys)
		c.Args = args
		r := w.Add(c)
		tap, _, _, _, _ := vmConf(r, "vm1")
		Expect(tap).To(Equal(name))
		var links []struct {
			Linkinfo struct {
				Data Object `json:"info_data"`
			}
		}
		cont.JSON(&links, "ip", "-j", "-d", "link", "show", "dev", name)
		Expect(links[0].Linkinfo.Data).To(Equal(Object{"type": "tap", "pi": false, "vnet_hdr": true,
			"multi_queue": false,
			"persist":     true, "user": uid, "group": gid}))
		check := Call{Command: "CHECK", ID: "vm1", Netns: cont.Path, Args: args, Conf: With(c.Conf.(Object), r)}
		w.Succeeds(check)
		check.Args = argUID + "=5"
		Expect(w.Fails(check, cni.CodeDrift)).To(ContainSubstring("owner is"))
	},
		Entry("by keys", "", Object{"tap_name": "vmtap", "uid": 4107, "gid": 4108}, "vmtap", 4107.0, 4108.0),
		Entry("by CNI_ARGS, beside others", "FC=x;TC_REDIRECT_TAP_UID=4007;TC_REDIRECT_TAP_GID=4008;"+
			"TC_REDIRECT_TAP_NAME=fc0", Object{"tap_name": "vmtap", "uid": 4107}, "fc0", 4007.0, 4008.0),
		Entry("or who runs it", "", nil, "tap0", "root", "root"))

	DescribeTable("refuses", func(args string, keys Object, code uint, want string) {
		w := newWorld()
		c, cont := before(w, keys)
		c.Args = args
		was := state(w, cont)
		Expect(w.Fails(c, code)).To(HavePrefix(want))
		Expect(state(w, cont)).To(Equal(was))
	},
		Entry("a bad ID", argUID+"=x", nil, cni.CodeEnvironment,
			`CNI_ARGS: TC_REDIRECT_TAP_UID: "x" is not a valid ID`),
		Entry("a bad name", argName+"=a/b", nil, cni.CodeEnvironment, `CNI_ARGS: TC_REDIRECT_TAP_NAME: "a/b"`),
		Entry("the interface's own name", "", Object{"tap_name": "eth0"}, cni.CodeConfig, `tap_name: "eth0" is the`),
		Entry("a name that is taken", "", Object{"tap_name": "lo"}, cni.CodeExists, `tap "lo" `),
		Entry("bad vm_ips", "", Object{"vm_ips": "two"}, cni.CodeConfig, `vm_ips: "two" is neither`),
		Entry("an invalid ID", "", Object{"gid": 4294967295}, cni.CodeConfig,
			`gid: 4294967295 is not a valid ID`))

	It("leaves nothing when it fails, and nothing of another's", Label("redirect-fails"), func() {
		w := newWorld()
		c, cont := before(w, nil)
		was := state(w, cont)
		broken := c
		broken.Stdout = BrokenPipe{}
		a := w.Call(broken)
		Expect(a.Code).To(Equal(1))
		Expect(a.Stderr).NotTo(ContainSubstring("roll-back"))
		Expect(state(w, cont)).To(Equal(was))
		cont.Cmd("tc", "qdisc", "add", "dev", "eth0", "ingress")
		was = state(w, cont)
		Expect(w.Fails(c, cni.CodeConflict)).To(HavePrefix(`interface "eth0": has the ingress qdisc "ingress"`))
		Expect(state(w, cont)).To(Equal(was))
	})

	It("keeps its record if the roll-back fails, so that DEL removes the tap", Label("redirect-fails"), func() {
		w := newWorld()
		c, cont := before(w, nil)
		was := state(w, cont)
		broken := c
		broken.Stdout = BrokenPipe{}
		const deleteLink = 32 // bytes of the request
		broken.Before = func() {
			nstest.FailCall(unix.SYS_SENDTO, unix.EPERM, nstest.Arg{Number: 2, Value: deleteLink})
		}
		Expect(w.Call(broken).Stderr).To(ContainSubstring("roll-back: remove the tap"))
		Expect(Names(cont, "tun")).NotTo(BeEmpty())
		c.Command = "DEL"
		w.Succeeds(c)
		Expect(state(w, cont)).To(Equal(was))
	})

	It("fails where the attachment is live, and harms nothing", func() {
		v := newVM(nil)
		was := state(v.World, v.Attached.Host)
		v.Fails(v.Attached.Call, cni.CodeExists)
		Expect(state(v.World, v.Attached.Host)).To(Equal(was))
		v.Succeeds(v.As("CHECK"))
	})
})

var _ = Describe("DEL", func() {
	DescribeTable("leaves nothing, and a container that receives again", Label("redirect-del"), func(
		change func(v vm, c *Call),
	) {
		v := newVM(nil)
		c := v.As("DEL")
		change(v, &c)
		v.Succeeds(c)
		Expect(Names(v.Attached.Host, "tun")).To(BeEmpty())
		Expect(v.Attached.Host.Cmd("tc", "qdisc")).NotTo(ContainSubstring("ingress"))
		Expect(v.Records(recordDir)).To(BeEmpty())
		Expect(Ping(v.Attached.Host, "10.1.0.1")).To(BeTrue())
		v.Succeeds(c)
	},
		Entry("with everything", func(vm, *Call) {}),
		Entry("without the namespace's path", func(_ vm, c *Call) { c.Netns = "" }),
		Entry("without prevResult", func(_ vm, c *Call) { c.Conf = Object{"cniVersion": "1.1.0", "name": "net"} }),
		Entry("with bad keys", func(_ vm, c *Call) { c.Conf = Merge(c.Conf.(Object), Object{"uid": "x"}) }),
		Entry("with bad CNI_ARGS", func(_ vm, c *Call) { c.Args = argUID + "=x" }),
		Entry("without record", func(v vm, _ *Call) { v.World.Cmd("sh", "-c", "rm "+recordDir+"/*.json") }),
		Entry("of a tap that the container renamed", func(v vm, _ *Call) {
			IP(v.Attached.Host, "link set tap0 down name machine")
			IP(v.Attached.Host, "link set machine up")
		}),
		Entry("without the tap", func(v vm, _ *Call) { IP(v.Attached.Host, "link del tap0") }),
	)

	It("removes what another program of that name made", Label("redirect-del"), func() {
		w := newWorld()
		c, cont := before(w, nil)
		was := state(w, cont)
		cont.Cmd("sh", "-ec", `ip tuntap add tap0 mode tap vnet_hdr; ip link set tap0 up
			for d in tap0 eth0; do tc qdisc add dev $d ingress; done
			tc filter add dev tap0 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev eth0
			tc filter add dev eth0 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev tap0`)
		c.Command = "DEL"
		w.Succeeds(c)
		Expect(state(w, cont)).To(Equal(was))
	})

	It("of somebody else's ingress qdisc, and before ADD, does nothing", func() {
		w := newWorld()
		c, cont := before(w, nil)
		cont.Cmd("tc", "qdisc", "add", "dev", "eth0", "ingress")
		was := state(w, cont)
		c.Command = "DEL"
		w.Succeeds(c) // as the Go SDK of Firecracker does before ADD
		Expect(state(w, cont)).To(Equal(was))
	})
})

var _ = Describe("CHECK", func() {
	DescribeTable("finds what is not as ADD left it", Label("redirect-check"), func(commands, want string) {
		v := newVM(nil)
		v.Succeeds(v.As("CHECK"))
		v.Attached.Cmd("sh", "-ec", commands)
		Expect(v.Fails(v.As("CHECK"), cni.CodeDrift)).To(HavePrefix(want))
	},
		Entry("no tap", "ip link del tap0", `tap "tap0": is missing`),
		Entry("another kind", "ip link del tap0; ip link add tap0 type veth peer name x", `tap "tap0": is missing`),
		Entry("no interface", "ip link set eth0 down; ip link set eth0 name x", `interface "eth0": is missing`),
		Entry("down", "ip link set tap0 down", `tap "tap0": up is false`),
		Entry("another MTU", "ip link set eth0 mtu 1400", `tap "tap0": MTU is 1500 instead of 1400`),
		Entry("one way", "tc qdisc del dev eth0 ingress", `interface "eth0": does not redirect all`),
		Entry("the other way", "tc filter del dev tap0 ingress", `interface "tap0": does not redirect all`),
	)

	It("wants the tap in prevResult", func() {
		v := newVM(nil)
		c := v.As("CHECK")
		c.Conf = v.Attached.Call.Conf
		Expect(v.Fails(c, cni.CodeConfig)).To(HavePrefix(
			`prevResult.interfaces: has no interface with sandbox "vm1"`))
	})
})

var _ = It("GC removes the taps that are not valid, and the records of namespaces that are gone", Label("redirect-del"),
	func() {
		v := newVM(nil)
		gc := func(network string, ids ...string) {
			GinkgoHelper()
			valid := []Object{}
			for _, id := range ids {
				valid = append(valid, Object{"containerID": id, "ifname": "eth0"})
			}
			v.Succeeds(Call{Command: "GC", Conf: Object{"cniVersion": "1.1.0", "name": network,
				"type": "tc-redirect-tap", "cni.dev/valid-attachments": valid}})
		}
		gc("net", "vm1")
		gc("other")
		v.Succeeds(v.As("CHECK"))
		gc("net", "vm2")
		Expect(Names(v.Attached.Host, "tun")).To(BeEmpty())
		Expect(Ping(v.Attached.Host, "10.1.0.1")).To(BeTrue())
		other := v.AttachBehind("vm3", "net", nil, Addrs(3)...)
		IP(v.World.Host, "netns del %s", other.Host.Name)
		gc("net")
		Expect(v.Records(recordDir)).To(BeEmpty())
	})

var _ = It("is listed until DEL, and the list changes nothing", func() {
	w := newWorld()
	n := 1
	w.ExpectHeld(func(id, network string) (Call, []string) {
		n++
		a := w.AttachBehind(id, network, nil, Addrs(n)...)
		return a.As("DEL"), []string{"interface: tap0 type tun"}
	})
})

var _ = It("STATUS is content where taps can be made", func() {
	w := newWorld()
	w.Succeeds(Call{Command: "STATUS", Conf: Object{"cniVersion": "1.1.0", "name": "net", "type": "tc-redirect-tap"}})
})

var _ = DescribeTable("reads records of earlier versions, and writes current ones",
	ExpectFormerRecord[record],
	Entry("before 0.2.0",
		`"path": "/run/netns/c1", "netns": ID, "link": 2, "made": ["tap0"], "tap": 3`,
		`"netnsPath": "/run/netns/c1", "netns": ID, "link": 2, "made": ["tap0"], "tap": 3`))
