package main

import (
	"context"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// form is a way in which a runtime may call DEL.
type form struct {
	before func(w *World, a Attached)
	call   func(c *Call)
	// What must still be there in the container afterwards.
	leaves []string
}

func without(keys ...string) func(*Call) {
	return func(c *Call) {
		for _, k := range keys {
			delete(c.Conf.(Object), k)
		}
	}
}

func saying(key string, value any) func(*Call) {
	return func(c *Call) { c.Conf.(Object)[key] = value }
}

func netns(path string) func(*Call) { return func(c *Call) { c.Netns = path } }

func all(changes ...func(*Call)) func(*Call) {
	return func(c *Call) {
		for _, change := range changes {
			change(c)
		}
	}
}

func inside(commands ...string) func(*World, Attached) {
	return func(_ *World, a Attached) {
		for _, words := range commands {
			IP(a.Host, "%s", words)
		}
	}
}

var _ = Describe("DEL", func() {
	var w *World
	var live Attached
	var clean string
	BeforeEach(func() {
		w = newWorld()
		live = settle(w, w.Attach("live", everything(), nth(2)...))
		clean = w.Snapshot()
	})
	isClean := func() {
		GinkgoHelper()
		Eventually(func() string { return w.Snapshot() }, nstest.Patience(3e9)).Should(Equal(clean))
		Expect(alive(live)).To(BeTrue())
	}

	DescribeTable("leaves nothing behind", func(f form) {
		a := w.Attach("one", everything(), nth(3)...)
		if f.before != nil {
			f.before(w, a)
		}
		c := a.As("DEL")
		if f.call != nil {
			f.call(&c)
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
	},
		Entry("with all that a runtime knows", form{}),
		Entry("without prevResult", form{call: without("prevResult")}),
		Entry("with prevResult null", form{call: saying("prevResult", nil)}),
		Entry("with a prevResult that cannot be read", form{call: saying("prevResult", Object{"ips": 5})}),
		Entry("with a prevResult whose indexes make no sense", form{call: saying("prevResult", Object{"cniVersion": "1.0.0",
			"ips": []Object{{"address": "10.1.0.3/24", "interface": 7}, {"address": "2001:db8:1::3/64", "interface": 0}}})}),
		Entry("with a prevResult of another version", form{call: saying("prevResult", Object{"cniVersion": "9.9.9"})}),
		Entry("without CNI_NETNS", form{call: netns("")}),
		Entry("without CNI_NETNS and prevResult", form{call: all(netns(""), without("prevResult"))}),
		Entry("with a path that leads nowhere", form{call: netns("/run/netns/gone")}),
		Entry("with a path that leads nowhere, without prevResult", form{call: all(netns("/run/netns/gone"), without("prevResult"))}),
		Entry("with a path to no namespace", form{call: netns("/proc/version")}),
		Entry("with a path to another kind of namespace", form{call: netns("/proc/self/ns/mnt")}),
		Entry("with the path of the host's own namespace", form{call: netns("/proc/thread-self/ns/net")}),
		Entry("when the namespace is gone", form{before: func(_ *World, a Attached) { a.Unpin() }}),
		Entry("when the interface is gone", form{before: inside("link del eth0")}),
		Entry("when the interface is renamed", form{before: inside("link set eth0 down", "link set eth0 name moved")}),
		Entry("when the interface is renamed and another has its name", form{
			before: inside("link set eth0 down", "link set eth0 name moved", "link add eth0 type veth peer name x"), leaves: []string{"eth0", "x"}}),
		Entry("when the container took another MAC address", form{before: inside("link set eth0 address 02:00:00:00:00:77")}),
		Entry("when the container took other addresses", form{before: inside("addr flush dev eth0", "addr add 10.1.0.77/24 dev eth0")}),
		Entry("with keys that make no sense", form{call: all(saying("mtu", "x"), saying("ipMasq", 9), saying("ipMasqBackend", "x"), saying("dns", 5))}),
		Entry("with keys that say otherwise", form{call: all(saying("ipMasq", false), saying("ipMasqBackend", "iptables"), saying("mtu", 1300))}),
		Entry("with CNI_ARGS that make no sense", form{call: func(c *Call) { c.Args = "MAC=zz;nonsense" }}),
	)

	DescribeTable("keeps the addresses while it cannot look for the interface:", func(call uint32, errno unix.Errno) {
		a := w.Attach("one", everything(), nth(3)...)
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

	It("without ipam asks nobody", func() {
		a := w.Attach("one", everything(), nth(3)...)
		c := a.As("DEL")
		without("ipam")(&c)
		w.Calls()
		w.Succeeds(c)
		Expect(w.Calls()).To(BeEmpty())
		isClean()
	})

	It("leaves nothing behind on the iptables backend either", func() {
		nstest.Need("iptables")
		a := w.Attach("one", everything(Object{"ipMasqBackend": "iptables"}), nth(3)...)
		rules := func() string { return w.Cmd("iptables-save", "-t", "nat") + w.Cmd("ip6tables-save", "-t", "nat") }
		Expect(rules()).To(And(ContainSubstring("10.1.0.3"), ContainSubstring("2001:db8:1::3")))
		c := a.As("DEL")
		all(netns(""), without("prevResult", "ipMasqBackend", "ipMasq"))(&c)
		w.Succeeds(c)
		Expect(rules()).NotTo(Or(ContainSubstring("10.1.0.3"), ContainSubstring("2001:db8:1::3")))
		Expect(alive(live)).To(BeTrue())
	})

	It("needs no program but the delegate", func() {
		a := w.Attach("one", everything(), nth(3)...)
		c := a.As("DEL")
		all(netns(""), without("prevResult"), saying("ipam", Object{"type": "host-local", "subnet": "10.1.0.0/24"}))(&c)
		c.Path = strings.TrimSuffix(nstest.Build("host-local"), "/host-local")
		program := c.Program(w, nstest.Build("ptp"))
		program.Env = append(program.Env, "PATH=")
		Expect(w.Run(program)).To(Equal(nstest.Output{}))
		isClean()
	})

	It("does not touch the container that has the namespace by now", func() {
		a := w.Attach("one", everything(), nth(3)...)
		IP(a.Host, "link del eth0")
		for _, change := range []func(*Call){all(), without("prevResult")} {
			c := a.As("DEL")
			c.Netns = live.Path
			change(&c)
			w.Succeeds(c)
			isClean()
			Expect(Names(live.Host, "")).To(Equal([]string{"eth0"}))
		}
	})

	It("does not touch a host interface that has the name by now", func() {
		a := w.Attach("one", everything(), nth(3)...)
		IP(a.Host, "link del eth0")
		IP(w.Host, "link add %s type veth peer name other", hostEnd(a.Result))
		for _, path := range []string{"", a.Path} {
			c := a.As("DEL")
			c.Netns = path
			w.Succeeds(c)
		}
		Expect(Names(w.Host, "")).To(ContainElements(hostEnd(a.Result), "other"))
		IP(w.Host, "link del other")
		isClean()
	})

	It("takes a host end that somebody put into a bridge", func() {
		a := w.Attach("one", everything(), nth(3)...)
		IP(w.Host, "link add name br type bridge")
		IP(w.Host, "link set %s master br", hostEnd(a.Result))
		w.Succeeds(a.As("DEL"))
		IP(w.Host, "link del dev br")
		isClean()
	})

	It("leaves the masquerade of an address that has a new owner", func() {
		a := w.Attach("one", everything(), nth(3)...)
		w.Attach("new", everything(), nth(3)...)
		rules := w.Snapshot("nftables")
		w.Succeeds(a.As("DEL"))
		Expect(w.Snapshot("nftables")).To(Equal(rules))
	})

	It("takes one of several attachments of a container, and leaves the others", func() {
		one := w.Attach("one", everything(), nth(3)...)
		w.LendAddrs("one", nth(4)...)
		second := Attached{Host: one.Host, Call: Call{ID: "one", IfName: "eth1", Netns: one.Path, Conf: everything()}}
		second.Result = w.Add(second.Call)
		w.LendAddrs("one", nth(5)...)
		other := Attached{Host: one.Host, Call: Call{ID: "one", IfName: "eth2", Netns: one.Path, Conf: everything(Object{"name": "other"})}}
		other.Result = w.Add(other.Call)
		Expect(Names(one.Host, "")).To(ConsistOf("eth0", "eth1", "eth2"))
		for _, a := range []Attached{one, second, other} {
			w.Succeeds(a.As("CHECK"))
		}
		for i, a := range []Attached{second, other} {
			w.Succeeds(a.As("DEL"))
			Expect(Names(one.Host, "")).To(HaveLen(2 - i))
			w.Succeeds(one.As("CHECK"))
			Expect(alive(one)).To(BeTrue())
		}
		w.Succeeds(one.As("DEL"))
		isClean()
	})

	It("takes the attachment of one network, and leaves that of another with the same container and interface", func() {
		one := settle(w, w.Attach("one", everything(), nth(3)...))
		before := w.Snapshot()
		other := w.Attach("one", everything(Object{"name": "other"}), nth(4)...)
		w.Succeeds(other.As("DEL"))
		Expect(Names(other.Host, "")).To(BeEmpty())
		Expect(w.Snapshot()).To(Equal(before))
		w.Succeeds(one.As("CHECK"))
	})

	It("withholds the addresses while the interface cannot be deleted", func() {
		nstest.NeedProgram("setpriv")
		a := w.Attach("one", everything(), nth(3)...)
		w.Calls()
		c := a.As("DEL")
		out := w.Run(c.Program(w, "setpriv", "--bounding-set", "-all", "--inh-caps", "-all", nstest.Build("ptp")))
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stdout).To(And(ContainSubstring("not asked to release"), ContainSubstring(hostEnd(a.Result))))
		Expect(w.Calls()).To(BeEmpty())
		w.Succeeds(c)
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
		isClean()
	})

	DescribeTable("releases the addresses when nobody answers to them any more", func(ipam string, seen types.GomegaMatcher) {
		Expect(os.Symlink("fake", w.Dir+"/whereabouts")).To(Succeed())
		a := w.Attach("one", everything(Object{"ipam": Object{"type": ipam}}), nth(3)...)
		w.On("DEL", `cat >/dev/null; { ip -o link; nft list ruleset; nsenter --net="$CNI_NETNS" ip addr show eth0; } >"$d/seen" 2>&1; :`)
		c := a.As("DEL")
		w.Calls()
		Expect(w.Exec(c).Code).To(BeZero())
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
		Expect(os.ReadFile(w.Dir + "/seen")).To(And(ContainSubstring(hostEnd(live.Result)), seen, Not(ContainSubstring("10.1.0.3"))))
		isClean()
	},
		Entry("of a store: when the interface is gone", "whereabouts", ContainSubstring(`"eth0" does not exist`)),
		Entry("of a plugin that may need the interface: when it has no address", "fake", MatchRegexp(`eth0@if.* state UP`)),
	)

	It("passes IPAM's error on, when all else is gone", func() {
		a := w.Attach("one", everything(), nth(3)...)
		w.On("DEL", Refusal)
		Expect(w.Fails(a.As("DEL"), 11)).To(Equal("later\npool"))
		isClean()
	})
})

var _ = eachReference(func(ref nstest.Reference) {
	var w *World
	c := conf(Object{"cniVersion": "1.0.0", "ipMasq": true})
	attach := func(id string, n int) Attached {
		GinkgoHelper()
		w.LendAddrs(id, nth(n)...)
		cont := nstest.NewNetns()
		cont.SetSysctl("net/ipv6/conf/default/accept_dad", "0") // the reference waits for it
		call := Call{Command: "ADD", ID: id, Netns: cont.Path, Conf: c}
		return Attached{Host: cont, Call: call, Result: w.Reference(ref, call).Added()}
	}
	rules := func() string { return w.Cmd("iptables-save", "-t", "nat") + w.Cmd("ip6tables-save", "-t", "nat") }
	BeforeEach(func() {
		nstest.Need("iptables")
		w = newWorld()
		w.SetSysctl("net/ipv6/conf/default/accept_dad", "0") // the reference waits for it
	})

	It("passes CHECK, each thing of it", func() {
		a := attach("one", 3)
		w.Succeeds(a.As("CHECK"))
		IP(w.Host, "route del 10.1.0.3")
		Expect(w.Fails(a.As("CHECK"), 101)).To(ContainSubstring("10.1.0.3/32"))
	})

	DescribeTable("is removed by DEL, and nothing else is", func(change func(a Attached, c *Call)) {
		other := settle(w, attach("other", 2))
		before, masq := w.Snapshot("links", "addresses", "routes"), rules()
		a := attach("one", 3)
		call := a.As("DEL")
		change(a, &call)
		w.Calls()
		w.Succeeds(call)
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
		Eventually(func() string { return w.Snapshot("links", "addresses", "routes") }, "3s").Should(Equal(before))
		Expect(rules()).NotTo(ContainSubstring("10.1.0.3"))
		Expect(strings.Count(rules(), "\n")).To(Equal(strings.Count(masq, "\n")))
		if _, err := os.Stat(a.Path); err == nil {
			Expect(Names(a.Host, "")).To(BeEmpty())
		}
		Expect(Names(other.Host, "")).To(Equal([]string{"eth0"}))
		Expect(alive(other)).To(BeTrue())
		w.Succeeds(call)
	},
		Entry("with prevResult", func(Attached, *Call) {}),
		Entry("without prevResult", func(_ Attached, c *Call) { without("prevResult")(c) }),
		Entry("without CNI_NETNS", func(_ Attached, c *Call) { c.Netns = "" }),
		Entry("when the namespace is gone", func(a Attached, c *Call) { a.Unpin() }),
		Entry("when the namespace is gone, without prevResult", func(a Attached, c *Call) {
			a.Unpin()
			without("prevResult")(c)
		}),
		Entry("when the interface is renamed", func(a Attached, _ *Call) {
			IP(a.Host, "link set eth0 down")
			IP(a.Host, "link set eth0 name moved")
		}),
	)

	It("is not removed when the namespace is another container's by now", func() {
		a, other := attach("one", 3), attach("other", 2)
		IP(a.Host, "link del eth0")
		call := a.As("DEL")
		call.Netns = other.Path
		w.Succeeds(call)
		Expect(Names(other.Host, "")).To(Equal([]string{"eth0"}))
		Expect(alive(other)).To(BeTrue())
	})

	It("is not removed because it has the name, or is a port of a bridge", func() {
		a := attach("one", 3)
		IP(a.Host, "link del eth0")
		IP(w.Host, "link add %s address %s type veth peer name other", hostEnd(a.Result), a.Result.Interfaces[0].MAC)
		IP(w.Host, "link add name br type bridge")
		IP(w.Host, "link set %s master br", hostEnd(a.Result))
		w.Succeeds(a.As("DEL"))
		Expect(Names(w.Host, "")).To(ContainElements(hostEnd(a.Result), "other"))
	})

	It("is replaced after DEL by ours, which the reference's DEL removes", func() {
		a := attach("one", 3)
		w.Succeeds(a.As("DEL"))
		before := w.Snapshot("links")
		a.Call.Conf = conf(Object{"cniVersion": "1.0.0", "ipMasq": true, "ipMasqBackend": "iptables"})
		a.Result = w.Add(a.Call)
		Expect(rules()).To(ContainSubstring("10.1.0.3"))
		Expect(w.Reference(ref, a.As("DEL")).Code).To(BeZero())
		Expect(rules()).NotTo(Or(ContainSubstring("10.1.0.3"), ContainSubstring("2001:db8:1::3")))
		Eventually(func() string { return w.Snapshot("links") }, "3s").Should(Equal(before))
	})
})

// eachReference is what each release of the reference plugin made.
func eachReference(specs func(nstest.Reference)) bool {
	for _, ref := range nstest.References() {
		Describe("what "+ref.Name+" made", func() { specs(ref) })
	}
	return true
}
