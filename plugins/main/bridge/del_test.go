package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// form is a way in which a runtime may call DEL.
type form struct {
	before func(w *world, a Attached)
	call   func(w *world, c *Call)
	// What must still be there in the container afterwards.
	leaves []string
}

func without(keys ...string) func(*world, *Call) {
	return func(_ *world, c *Call) {
		for _, k := range keys {
			delete(c.Conf.(Object), k)
		}
	}
}

func saying(key string, value any) func(*world, *Call) {
	return func(_ *world, c *Call) { c.Conf.(Object)[key] = value }
}

func netns(path string) func(*world, *Call) { return func(_ *world, c *Call) { c.Netns = path } }

func all(changes ...func(*world, *Call)) func(*world, *Call) {
	return func(w *world, c *Call) {
		for _, change := range changes {
			change(w, c)
		}
	}
}

func inside(words string) func(*world, Attached) {
	return func(_ *world, a Attached) { IP(a.Host, "%s", words) }
}

var _ = Describe("DEL", func() {
	var w *world
	var live Attached
	var clean string
	BeforeEach(func() {
		w = newWorld()
		live = w.settle(w.Attach("live", everything(), "10.1.0.2/24", "2001:db8:1::2/64"))
		clean = w.Snapshot()
	})
	isClean := func() {
		GinkgoHelper()
		Eventually(func() string { return w.Snapshot() }, nstest.Patience(3e9)).Should(Equal(clean))
		Expect(Ping(live.Host, "10.1.0.1") && Ping(live.Host, "2001:db8:1::1")).To(BeTrue())
	}

	forms := []any{
		Entry("with all that a runtime knows", form{}),
		Entry("without prevResult", form{call: without("prevResult")}),
		Entry("with prevResult null", form{call: saying("prevResult", nil)}),
		Entry("with a prevResult that cannot be read", form{call: saying("prevResult", Object{"ips": 5})}),
		Entry("with a prevResult of another version", form{call: saying("prevResult", Object{"cniVersion": "9.9.9"})}),
		Entry("without CNI_NETNS", form{call: netns("")}),
		Entry("without CNI_NETNS and prevResult", form{call: all(netns(""), without("prevResult"))}),
		Entry("with a path that leads nowhere", form{call: netns("/run/netns/gone")}),
		Entry("with a path that leads nowhere, without prevResult", form{call: all(netns("/run/netns/gone"), without("prevResult"))}),
		Entry("with a path to no namespace", form{call: netns("/bin/sh")}),
		Entry("with a path to another kind of namespace", form{call: netns("/proc/self/ns/mnt")}),
		Entry("with the path of the host's own namespace", form{call: netns("/proc/thread-self/ns/net")}),
		Entry("when the namespace is gone", form{before: func(_ *world, a Attached) { a.Unpin() }}),
		Entry("when the interface is gone", form{before: inside("link del eth0")}),
		Entry("when the interface is renamed", form{before: inside("link set eth0 name moved")}),
		Entry("when the interface is renamed and another has its name", form{
			before: func(_ *world, a Attached) {
				IP(a.Host, "link set eth0 name moved")
				IP(a.Host, "link add eth0 type veth peer name x")
			}, leaves: []string{"eth0", "x"}}),
		Entry("when the container took another MAC address", form{before: inside("link set eth0 address 02:00:00:00:00:77")}),
		Entry("when the port was taken out of the bridge", form{before: func(w *world, a Attached) {
			IP(w.Host, "link set %s nomaster", hostEnd(a.Result))
		}}),
		Entry("with keys that make no sense", form{call: all(saying("mtu", "x"), saying("vlan", 9999), saying("vlanTrunk", 5), saying("ipMasqBackend", "x"), saying("dns", 5))}),
		Entry("with keys that say otherwise", form{call: all(saying("ipMasq", false), saying("macspoofchk", false), saying("isDefaultGateway", false))}),
		Entry("with another bridge's name", form{call: saying("bridge", "other")}),
		Entry("with a bridge's name that is none", form{call: saying("bridge", Object{})}),
		Entry("with CNI_ARGS that make no sense", form{call: func(_ *world, c *Call) { c.Args = "MAC=zz;nonsense" }}),
	}
	test := func(f form) {
		a := w.Attach("one", everything(), "10.1.0.3/24", "2001:db8:1::3/64")
		if f.before != nil {
			f.before(w, a)
		}
		c := a.As("DEL")
		if f.call != nil {
			f.call(w, &c)
		}
		w.Calls()
		w.Succeeds(c)
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
		isClean()
		if _, err := os.Stat(a.Path); err == nil {
			Expect(Names(a.Host, "")).To(ConsistOf(f.leaves))
		}
		w.Succeeds(c) // again
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
		isClean()
	}
	DescribeTable("leaves nothing behind", append([]any{test}, forms...)...)

	DescribeTable("keeps the addresses while it cannot look for the interface:", func(call uint32, errno unix.Errno) {
		a := w.Attach("one", everything(), "10.1.0.3/24")
		w.Calls()
		whole := w.Plugin.Del
		w.Plugin.Del = func(ctx context.Context, req *skel.Request) error {
			nstest.FailCall(call, errno)
			return whole(ctx, req)
		}
		Expect(w.Fails(a.As("DEL"), cni.CodeInternal)).To(ContainSubstring("not asked to release the addresses"))
		Expect(w.Calls()).NotTo(ContainElement(HavePrefix("DEL")))
		w.Plugin.Del = whole
		w.Succeeds(a.As("DEL"))
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
		isClean()
	},
		Entry("no descriptor for a socket", uint32(unix.SYS_SOCKET), unix.EMFILE), Entry("no memory for a message", uint32(unix.SYS_SENDTO), unix.ENOBUFS),
	)

	It("before ADD succeeds and harms nothing", func() {
		cont := nstest.NewNetns()
		IP(cont, "link add eth0 type veth peer name x")
		for _, path := range []string{"", "/run/netns/gone", cont.Path} {
			w.Succeeds(Call{Command: "DEL", Netns: path, Conf: everything()})
		}
		Expect(Names(cont, "")).To(ConsistOf("eth0", "x"))
		isClean()
	})

	It("leaves nothing behind on the iptables backend either", func() {
		nstest.Need("iptables")
		a := w.Attach("one", everything(Object{"ipMasqBackend": "iptables"}), "10.1.0.3/24", "2001:db8:1::3/64")
		Expect(w.Cmd("iptables-save", "-t", "nat")).To(ContainSubstring("10.1.0.3"))
		c := a.As("DEL")
		all(netns(""), without("prevResult", "ipMasqBackend", "ipMasq"))(w, &c)
		w.Succeeds(c)
		Expect(w.Cmd("iptables-save", "-t", "nat")).NotTo(ContainSubstring("10.1.0.3"))
		Expect(w.Cmd("ip6tables-save", "-t", "nat")).NotTo(ContainSubstring("2001:db8:1::3"))
	})

	It("needs no program but the delegate", func() {
		a := w.Attach("one", everything(), "10.1.0.3/24")
		c := a.As("DEL")
		all(netns(""), without("prevResult"))(w, &c)
		path := strings.TrimSuffix(nstest.Build("host-local"), "/host-local")
		c.Path = path
		c.Conf.(Object)["ipam"] = Object{"type": "host-local", "subnet": "10.1.0.0/24"}
		vars := append(c.Vars(w.World), "PATH=")
		out := w.Run(nstest.Program{Path: nstest.Build("bridge"), Env: vars, Stdin: c.Stdin()})
		Expect(out).To(Equal(nstest.Output{}))
		isClean()
	})

	It("works where the programs of legacy iptables are gone, and says what stays until they are back", func() {
		legacyIPTables()
		a := w.Attach("one", everything(Object{"ipMasqBackend": "iptables"}), "10.1.0.3/24")
		c := a.As("DEL")
		w.Calls()
		path, few := os.Getenv("PATH"), GinkgoT().TempDir()
		for _, name := range []string{"dirname", "cat"} { // what fake needs
			program, err := exec.LookPath(name)
			Expect(err).NotTo(HaveOccurred())
			Expect(os.Symlink(program, filepath.Join(few, name))).To(Succeed())
		}
		Expect(os.Setenv("PATH", few)).To(Succeed())
		out := w.Call(c)
		Expect(os.Setenv("PATH", path)).To(Succeed())
		Expect(out.Code).To(BeZero(), out.Stdout)
		Expect(out.Stderr).To(MatchRegexp(`^bridge: masquerade of .*one.*iptables-legacy-restore`))
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
		Expect(w.Cmd("iptables-legacy", "-t", "nat", "-S")).To(ContainSubstring("10.1.0.3"))
		w.Succeeds(c)
		Expect(w.Cmd("iptables-legacy", "-t", "nat", "-S")).NotTo(ContainSubstring("10.1.0.3"))
	})

	It("does not touch the container that has the namespace by now", func() {
		a := w.Attach("one", everything(), "10.1.0.3/24")
		IP(a.Host, "link del eth0")
		for _, prev := range []bool{true, false} {
			c := a.As("DEL")
			c.Netns = live.Path
			if !prev {
				without("prevResult")(w, &c)
			}
			w.Succeeds(c)
			isClean()
			Expect(Names(live.Host, "")).To(Equal([]string{"eth0"}))
		}
	})

	It("does not touch a host interface that has the name by now", func() {
		for _, master := range []string{"nomaster", "master br"} {
			a := w.Attach("one", everything(), "10.1.0.3/24")
			IP(a.Host, "link del eth0")
			IP(w.Host, "link add %s type veth peer name other", hostEnd(a.Result))
			IP(w.Host, "link set %s %s", hostEnd(a.Result), master)
			for _, path := range []string{"", a.Path} {
				c := a.As("DEL")
				c.Netns = path
				w.Succeeds(c)
			}
			Expect(Names(w.Host, "")).To(ContainElements(hostEnd(a.Result), "other"))
			IP(w.Host, "link del other")
			isClean()
		}
	})

	It("takes one of two attachments of a container, and leaves the other", func() {
		c := everything()
		one := w.Attach("one", c, "10.1.0.3/24")
		clean = w.Snapshot()
		second := Call{ID: "one", IfName: "eth1", Netns: one.Path, Conf: c}
		w.LendAddrs("one", "10.1.0.4/24")
		second.Conf = c
		res := w.Add(second)
		otherNet := Call{ID: "one", IfName: "eth2", Netns: one.Path, Conf: everything(Object{"name": "other"})}
		w.LendAddrs("one", "10.1.0.5/24")
		otherRes := w.Add(otherNet)
		Expect(Names(one.Host, "")).To(ConsistOf("eth0", "eth1", "eth2"))
		otherNet.Command, otherNet.Conf = "DEL", With(otherNet.Conf.(Object), otherRes)
		w.Succeeds(otherNet)
		second.Command, second.Conf = "DEL", With(c, res)
		w.Succeeds(second)
		isClean()
		Expect(Names(one.Host, "")).To(Equal([]string{"eth0"}))
		w.Succeeds(one.As("CHECK"))
	})

	It("takes the attachment of one network, and leaves that of another with the same container and interface", func() {
		one := w.Attach("one", everything(), "10.1.0.3/24")
		clean = w.Snapshot()
		other := w.Attach("one", everything(Object{"name": "other"}), "10.1.0.4/24")
		w.Succeeds(other.As("DEL"))
		isClean()
		w.Succeeds(one.As("CHECK"))
	})

	It("withholds the addresses while the interface cannot be deleted", func() {
		nstest.NeedProgram("setpriv")
		a := w.Attach("one", everything(), "10.1.0.3/24")
		w.Calls()
		c := a.As("DEL")
		out := w.Run(nstest.Program{Path: "setpriv", Args: []string{"--bounding-set", "-all", "--inh-caps", "-all", nstest.Build("bridge")}, Env: c.Vars(w.World), Stdin: c.Stdin()})
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stdout).To(ContainSubstring("not asked to release"))
		Expect(out.Stdout).To(ContainSubstring(hostEnd(a.Result)))
		Expect(w.Calls()).To(BeEmpty())
		w.Succeeds(c)
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
		isClean()
	})

	It("passes IPAM's error on, when all else is gone", func() {
		a := w.Attach("one", everything(), "10.1.0.3/24")
		w.On("DEL", Refusal)
		Expect(w.Fails(a.As("DEL"), 11)).To(Equal("later\npool"))
		isClean()
	})
})

var _ = eachReference(func(ref nstest.Reference) {
	var w *world
	c := l3(Object{"cniVersion": "1.0.0", "isGateway": true, "ipMasq": true, "macspoofchk": true})
	attach := func(id, addr string) Attached {
		GinkgoHelper()
		w.Lend(Text(Object{"cniVersion": "1.0.0", "ips": []Object{{"address": addr}}}), id)
		cont := nstest.NewNetns()
		cl := Call{Command: "ADD", ID: id, Netns: cont.Path, Conf: c}
		return Attached{Host: cont, Call: cl, Result: w.Reference(ref, cl).Added()}
	}
	BeforeEach(func() {
		w = newWorld()
		nstest.Need("iptables")
	})

	It("passes CHECK", func() {
		a := attach("one", "10.1.0.3/24")
		cl := a.As("CHECK")
		for _, key := range []string{"ipMasq", "macspoofchk"} { // of which we have rules of our own
			delete(cl.Conf.(Object), key)
		}
		w.Succeeds(cl)
	})

	DescribeTable("is removed by DEL, and nothing else is", func(change func(a Attached, c *Call)) {
		other := attach("other", "10.1.0.2/24")
		before := w.Snapshot("links", "nftables")
		a := attach("one", "10.1.0.3/24")
		cl := a.As("DEL")
		change(a, &cl)
		w.Succeeds(cl)
		Eventually(func() string { return w.Snapshot("links", "nftables") }, "3s").Should(Equal(before))
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(Names(other.Host, "")).To(Equal([]string{"eth0"}))
		Expect(Ping(other.Host, "10.1.0.1")).To(BeTrue())
		w.Succeeds(cl)
	},
		Entry("with prevResult", func(Attached, *Call) {}),
		Entry("without prevResult", func(_ Attached, c *Call) { without("prevResult")(nil, c) }),
		Entry("without CNI_NETNS", func(_ Attached, c *Call) { c.Netns = "" }),
		Entry("when the interface is renamed", func(a Attached, _ *Call) { IP(a.Host, "link set eth0 name moved") }),
	)

	It("is not removed when the namespace is another container's by now", func() {
		a, other := attach("one", "10.1.0.3/24"), attach("other", "10.1.0.2/24")
		IP(a.Host, "link del eth0")
		cl := a.As("DEL")
		cl.Netns = other.Path
		w.Succeeds(cl)
		Expect(Names(other.Host, "")).To(Equal([]string{"eth0"}))
		Expect(Ping(other.Host, "10.1.0.1")).To(BeTrue())
	})

	It("is not removed because a container points at it from its own namespace", func() {
		victim, a := attach("victim", "10.1.0.2/24"), attach("one", "10.1.0.3/24")
		port := Show(w.Host, hostEnd(victim.Result))
		index := Show(victim.Host, "eth0").Index
		IP(a.Host, "link del eth0")
		IP(a.Host, "link add name eth0 index %d type veth peer name x", index)
		IP(a.Host, "link del eth0")
		far := nstest.NewNetns()
		IP(a.Host, "link add name eth0 index %d type veth peer name x index %d netns %s", index, port.Index, far.Name)
		Expect(Show(a.Host, "eth0").Index).To(Equal(index))
		cl := a.As("DEL")
		delete(cl.Conf.(Object), "prevResult")
		w.Succeeds(cl)
		Expect(Names(victim.Host, "")).To(Equal([]string{"eth0"}))
		Expect(Ping(victim.Host, "10.1.0.1")).To(BeTrue())
	})
})

// eachReference is what each release of the reference plugin made.
func eachReference(specs func(nstest.Reference)) bool {
	for _, ref := range nstest.References() {
		Describe("what "+ref.Name+" made", func() { specs(ref) })
	}
	return true
}
