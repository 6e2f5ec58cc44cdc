package main

import (
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// form is a way in which a runtime may call DEL.
type form struct {
	before func(w *world, a attached)
	call   func(w *world, c *call)
	// What must still be there in the container afterwards.
	leaves []string
}

func without(keys ...string) func(*world, *call) {
	return func(_ *world, c *call) {
		for _, k := range keys {
			delete(c.conf.(object), k)
		}
	}
}

func saying(key string, value any) func(*world, *call) {
	return func(_ *world, c *call) { c.conf.(object)[key] = value }
}

func netns(path string) func(*world, *call) { return func(_ *world, c *call) { c.netns = path } }

func all(changes ...func(*world, *call)) func(*world, *call) {
	return func(w *world, c *call) {
		for _, change := range changes {
			change(w, c)
		}
	}
}

func inside(words string) func(*world, attached) {
	return func(_ *world, a attached) { ip(a.Host, "%s", words) }
}

var _ = Describe("DEL", func() {
	var w *world
	var live attached
	var clean string
	BeforeEach(func() {
		w = newWorld()
		live = w.settle(w.attach("live", everything(), "10.1.0.2/24", "2001:db8:1::2/64"))
		clean = w.Snapshot()
	})
	isClean := func() {
		GinkgoHelper()
		Eventually(func() string { return w.Snapshot() }, nstest.Patience(3e9)).Should(Equal(clean))
		Expect(ping(live.Host, "10.1.0.1") && ping(live.Host, "2001:db8:1::1")).To(BeTrue())
	}

	forms := []any{
		Entry("with all that a runtime knows", form{}),
		Entry("without prevResult", form{call: without("prevResult")}),
		Entry("with prevResult null", form{call: saying("prevResult", nil)}),
		Entry("with a prevResult that cannot be read", form{call: saying("prevResult", object{"ips": 5})}),
		Entry("with a prevResult of another version", form{call: saying("prevResult", object{"cniVersion": "9.9.9"})}),
		Entry("without CNI_NETNS", form{call: netns("")}),
		Entry("without CNI_NETNS and prevResult", form{call: all(netns(""), without("prevResult"))}),
		Entry("with a path that leads nowhere", form{call: netns("/run/netns/gone")}),
		Entry("with a path that leads nowhere, without prevResult", form{call: all(netns("/run/netns/gone"), without("prevResult"))}),
		Entry("with a path to no namespace", form{call: netns("/bin/sh")}),
		Entry("with a path to another kind of namespace", form{call: netns("/proc/self/ns/mnt")}),
		Entry("with the path of the host's own namespace", form{call: netns("/proc/thread-self/ns/net")}),
		Entry("when the namespace is gone", form{before: func(_ *world, a attached) { a.Unpin() }}),
		Entry("when the interface is gone", form{before: inside("link del eth0")}),
		Entry("when the interface is renamed", form{before: inside("link set eth0 name moved")}),
		Entry("when the interface is renamed and another has its name", form{
			before: func(_ *world, a attached) {
				ip(a.Host, "link set eth0 name moved")
				ip(a.Host, "link add eth0 type veth peer name x")
			}, leaves: []string{"eth0", "x"}}),
		Entry("when the container took another MAC address", form{before: inside("link set eth0 address 02:00:00:00:00:77")}),
		Entry("when the port was taken out of the bridge", form{before: func(w *world, a attached) {
			ip(w.Host, "link set %s nomaster", a.res.hostEnd())
		}}),
		Entry("with keys that make no sense", form{call: all(saying("mtu", "x"), saying("vlan", 9999), saying("vlanTrunk", 5), saying("ipMasqBackend", "x"), saying("dns", 5))}),
		Entry("with keys that say otherwise", form{call: all(saying("ipMasq", false), saying("macspoofchk", false), saying("isDefaultGateway", false))}),
		Entry("with another bridge's name", form{call: saying("bridge", "other")}),
		Entry("with a bridge's name that is none", form{call: saying("bridge", object{})}),
		Entry("with CNI_ARGS that make no sense", form{call: func(_ *world, c *call) { c.args = "MAC=zz;nonsense" }}),
	}
	test := func(f form) {
		a := w.attach("one", everything(), "10.1.0.3/24", "2001:db8:1::3/64")
		if f.before != nil {
			f.before(w, a)
		}
		c := a.as("DEL")
		if f.call != nil {
			f.call(w, &c)
		}
		w.calls()
		w.succeeds(c)
		Expect(w.calls()).To(Equal([]string{"DEL one eth0"}))
		isClean()
		if _, err := os.Stat(a.Path); err == nil {
			Expect(names(a.Host, "")).To(ConsistOf(f.leaves))
		}
		w.succeeds(c) // again
		Expect(w.calls()).To(Equal([]string{"DEL one eth0"}))
		isClean()
	}
	DescribeTable("leaves nothing behind", append([]any{test}, forms...)...)

	It("before ADD succeeds and harms nothing", func() {
		cont := nstest.NewNetns()
		ip(cont, "link add eth0 type veth peer name x")
		for _, path := range []string{"", "/run/netns/gone", cont.Path} {
			w.succeeds(call{command: "DEL", netns: path, conf: everything()})
		}
		Expect(names(cont, "")).To(ConsistOf("eth0", "x"))
		isClean()
	})

	It("leaves nothing behind on the iptables backend either", func() {
		nstest.Need("iptables")
		a := w.attach("one", everything(object{"ipMasqBackend": "iptables"}), "10.1.0.3/24", "2001:db8:1::3/64")
		Expect(w.Cmd("iptables-save", "-t", "nat")).To(ContainSubstring("10.1.0.3"))
		c := a.as("DEL")
		all(netns(""), without("prevResult", "ipMasqBackend", "ipMasq"))(w, &c)
		w.succeeds(c)
		Expect(w.Cmd("iptables-save", "-t", "nat")).NotTo(ContainSubstring("10.1.0.3"))
		Expect(w.Cmd("ip6tables-save", "-t", "nat")).NotTo(ContainSubstring("2001:db8:1::3"))
	})

	It("needs no program but the delegate", func() {
		a := w.attach("one", everything(), "10.1.0.3/24")
		c := a.as("DEL")
		all(netns(""), without("prevResult"))(w, &c)
		path := strings.TrimSuffix(nstest.Build("host-local"), "/host-local")
		c.path = path
		c.conf.(object)["ipam"] = object{"type": "host-local", "subnet": "10.1.0.0/24"}
		vars := append(c.vars(w), "PATH=")
		out := w.Run(nstest.Program{Path: nstest.Build("bridge"), Env: vars, Stdin: c.stdin()})
		Expect(out).To(Equal(nstest.Output{}))
		isClean()
	})

	It("does not touch the container that has the namespace by now", func() {
		a := w.attach("one", everything(), "10.1.0.3/24")
		ip(a.Host, "link del eth0")
		for _, prev := range []bool{true, false} {
			c := a.as("DEL")
			c.netns = live.Path
			if !prev {
				without("prevResult")(w, &c)
			}
			w.succeeds(c)
			isClean()
			Expect(names(live.Host, "")).To(Equal([]string{"eth0"}))
		}
	})

	It("does not touch a host interface that has the name by now", func() {
		for _, master := range []string{"nomaster", "master br"} {
			a := w.attach("one", everything(), "10.1.0.3/24")
			ip(a.Host, "link del eth0")
			ip(w.Host, "link add %s type veth peer name other", a.res.hostEnd())
			ip(w.Host, "link set %s %s", a.res.hostEnd(), master)
			for _, path := range []string{"", a.Path} {
				c := a.as("DEL")
				c.netns = path
				w.succeeds(c)
			}
			Expect(names(w.Host, "")).To(ContainElements(a.res.hostEnd(), "other"))
			ip(w.Host, "link del other")
			isClean()
		}
	})

	It("takes one of two attachments of a container, and leaves the other", func() {
		c := everything()
		one := w.attach("one", c, "10.1.0.3/24")
		clean = w.Snapshot()
		second := call{id: "one", ifName: "eth1", netns: one.Path, conf: c}
		w.lendAddrs("one", "10.1.0.4/24")
		second.conf = c
		res := w.add(second)
		otherNet := call{id: "one", ifName: "eth2", netns: one.Path, conf: everything(object{"name": "other"})}
		w.lendAddrs("one", "10.1.0.5/24")
		otherRes := w.add(otherNet)
		Expect(names(one.Host, "")).To(ConsistOf("eth0", "eth1", "eth2"))
		otherNet.command, otherNet.conf = "DEL", with(otherNet.conf.(object), otherRes)
		w.succeeds(otherNet)
		second.command, second.conf = "DEL", with(c, res)
		w.succeeds(second)
		isClean()
		Expect(names(one.Host, "")).To(Equal([]string{"eth0"}))
		w.succeeds(one.as("CHECK"))
	})

	It("takes the attachment of one network, and leaves that of another with the same container and interface", func() {
		one := w.attach("one", everything(), "10.1.0.3/24")
		clean = w.Snapshot()
		other := w.attach("one", everything(object{"name": "other"}), "10.1.0.4/24")
		w.succeeds(other.as("DEL"))
		isClean()
		w.succeeds(one.as("CHECK"))
	})

	It("withholds the addresses while the interface cannot be deleted", func() {
		nstest.NeedProgram("setpriv")
		a := w.attach("one", everything(), "10.1.0.3/24")
		w.calls()
		c := a.as("DEL")
		out := w.Run(nstest.Program{Path: "setpriv", Args: []string{"--bounding-set", "-all", "--inh-caps", "-all", nstest.Build("bridge")}, Env: c.vars(w), Stdin: c.stdin()})
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stdout).To(ContainSubstring("not asked to release"))
		Expect(out.Stdout).To(ContainSubstring(a.res.hostEnd()))
		Expect(w.calls()).To(BeEmpty())
		w.succeeds(c)
		Expect(w.calls()).To(Equal([]string{"DEL one eth0"}))
		isClean()
	})

	It("passes IPAM's error on, when all else is gone", func() {
		a := w.attach("one", everything(), "10.1.0.3/24")
		w.on("DEL", refusal)
		Expect(w.fails(a.as("DEL"), 11)).To(Equal("later\npool"))
		isClean()
	})
})

// reference runs the reference plugin, which knows no version after 1.0.0.
func (w *world) reference(c call) answer {
	GinkgoHelper()
	program := filepath.Join("/usr/lib/cni", "bridge")
	_, err := os.Stat(program)
	nstest.NeedOK("the reference plugins (Debian: containernetworking-plugins)", err)
	out := w.Run(nstest.Program{Path: program, Env: c.vars(w), Stdin: c.stdin()})
	return answer{out.Exit, out.Stdout, out.Stderr}
}

var _ = Describe("what the reference plugin made", func() {
	var w *world
	c := l3(object{"cniVersion": "1.0.0", "isGateway": true, "ipMasq": true, "macspoofchk": true})
	attach := func(id, addr string) attached {
		GinkgoHelper()
		w.lend(text(object{"cniVersion": "1.0.0", "ips": []object{{"address": addr}}}), id)
		cont := nstest.NewNetns()
		cl := call{command: "ADD", id: id, netns: cont.Path, conf: c}
		return attached{cont, cl, added(w.reference(cl))}
	}
	BeforeEach(func() {
		w = newWorld()
		nstest.Need("iptables")
	})

	It("passes CHECK", func() {
		a := attach("one", "10.1.0.3/24")
		cl := a.as("CHECK")
		for _, key := range []string{"ipMasq", "macspoofchk"} { // of which we have rules of our own
			delete(cl.conf.(object), key)
		}
		w.succeeds(cl)
	})

	DescribeTable("is removed by DEL, and nothing else is", func(change func(a attached, c *call)) {
		other := attach("other", "10.1.0.2/24")
		before := w.Snapshot("links", "nftables")
		a := attach("one", "10.1.0.3/24")
		cl := a.as("DEL")
		change(a, &cl)
		w.succeeds(cl)
		Eventually(func() string { return w.Snapshot("links", "nftables") }, "3s").Should(Equal(before))
		Expect(names(a.Host, "")).To(BeEmpty())
		Expect(names(other.Host, "")).To(Equal([]string{"eth0"}))
		Expect(ping(other.Host, "10.1.0.1")).To(BeTrue())
		w.succeeds(cl)
	},
		Entry("with prevResult", func(attached, *call) {}),
		Entry("without prevResult", func(_ attached, c *call) { without("prevResult")(nil, c) }),
		Entry("without CNI_NETNS", func(_ attached, c *call) { c.netns = "" }),
		Entry("when the interface is renamed", func(a attached, _ *call) { ip(a.Host, "link set eth0 name moved") }),
	)

	It("is not removed when the namespace is another container's by now", func() {
		a, other := attach("one", "10.1.0.3/24"), attach("other", "10.1.0.2/24")
		ip(a.Host, "link del eth0")
		cl := a.as("DEL")
		cl.netns = other.Path
		w.succeeds(cl)
		Expect(names(other.Host, "")).To(Equal([]string{"eth0"}))
		Expect(ping(other.Host, "10.1.0.1")).To(BeTrue())
	})

	It("is not removed because a container points at it from its own namespace", func() {
		victim, a := attach("victim", "10.1.0.2/24"), attach("one", "10.1.0.3/24")
		port := show(w.Host, victim.res.hostEnd())
		index := show(victim.Host, "eth0").Index
		ip(a.Host, "link del eth0")
		ip(a.Host, "link add name eth0 index %d type veth peer name x", index)
		ip(a.Host, "link del eth0")
		far := nstest.NewNetns()
		ip(a.Host, "link add name eth0 index %d type veth peer name x index %d netns %s", index, port.Index, far.Name)
		Expect(show(a.Host, "eth0").Index).To(Equal(index))
		cl := a.as("DEL")
		delete(cl.conf.(object), "prevResult")
		w.succeeds(cl)
		Expect(names(victim.Host, "")).To(Equal([]string{"eth0"}))
		Expect(ping(victim.Host, "10.1.0.1")).To(BeTrue())
	})
})
