package bridge

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// everything returns a configuration with all keys that can be combined on any kernel.
func everything(more ...Object) Object {
	return l3(append([]Object{{"isDefaultGateway": true, "ipMasq": true, "macspoofchk": true, "hairpinMode": true,
		"portIsolation": true, "mtu": 1400}}, more...)...)
}

func prepare(w *World) { w.SetSysctl("net/ipv6/conf/default/accept_dad", "0") } // no wait for link-local addresses

var _ = Behaves(Fixture{
	Plugin:        Plugin().Untyped(),
	Conf:          everything(),
	Reference:     l3(Object{"cniVersion": "1.0.0", "isGateway": true, "ipMasq": true, "macspoofchk": true}),
	HostEnd:       1,
	AlsoInProcess: true,
	Links:         []string{"br"},
	Prepare:       prepare,
	ListEntries: func(a Attached) []string {
		end := hostEnd(a.Result)
		return []string{"host end: " + end + " master br",
			fmt.Sprintf("MAC check: %q . %s", end, a.Result.Interfaces[2].MAC)}
	},
	InvalidKeys:  Object{"mtu": "x", "vlan": 9999, "vlanTrunk": 5, "ipMasqBackend": "x", "dns": 5},
	ContraryKeys: Object{"ipMasq": false, "macspoofchk": false, "isDefaultGateway": false},
	DelVariants: map[string]DelVariant{
		"when the port was removed from the bridge": {Before: func(w *World, a Attached) {
			IP(w.Host, "link set %s nomaster", hostEnd(a.Result))
		}},
		"with another bridge's name":  {Call: func(c *Call) { c.Conf.(Object)["bridge"] = "other" }},
		"with an invalid bridge name": {Call: func(c *Call) { c.Conf.(Object)["bridge"] = Object{} }},
	},
	Failures: map[string]Failure{
		"the bridge has another address": {Prepare: Lends("10.2.0.3/24"), Code: cni.CodeConflict,
			Message: "10.1.0.1/24", IPAMAdded: true},
		"the bridge has the address": {Prepare: Lends("10.1.0.1/24"),
			Change: WithKeys(Object{"isGateway": false, "isDefaultGateway": false, "ipMasq": false}),
			Code:   cni.CodeConflict, Message: "address 10.1.0.1", IPAMAdded: true},
		"an address is the gateway of another": {Prepare: Lends("10.1.0.7/24 10.1.0.9", "10.1.0.9/24 10.1.0.7"),
			Code: cni.CodeIPAM, Message: "10.1.0.7/24 both to the container and as a gateway", IPAMAdded: true},
		"a subnet has no gateway": {Prepare: Lends("10.1.0.3/32"), Code: cni.CodeIPAM, Message: "10.1.0.3/32",
			IPAMAdded: true},
		"another program owns macspoofchk's table": {Prepare: func(w *World, _ *nstest.Host) {
			w.Cmd("nft", "delete", "table", "bridge", "hawser")
			w.LockTable("bridge hawser")
		}, Code: cni.CodeInternal, Message: "not permitted", IPAMAdded: true},
	},
	Drifts: map[string]Drift{
		"the host end out of the bridge": OnHost("ip link set END nomaster", "END", "is not a port"),
		"the host end in another bridge": OnHost("ip link add name other type bridge;ip link set END master other",
			"END", "is not a port"),
		"hairpin off": OnHost("ip link set END type bridge_slave hairpin off", "END",
			"hairpin"),
		"isolation off": OnHost("ip link set END type bridge_slave isolated off", "END",
			"isolated"),
		"the bridge down":           OnHost("ip link set dev br down", `"br"`, "is down"),
		"a missing gateway address": OnHost("ip addr del 10.1.0.1/24 dev br", `"br"`, "10.1.0.1/24"),
		"a missing IPv6 gateway address": OnHost("ip addr del 2001:db8:1::1/64 dev br", `"br"`,
			"2001:db8:1::1/64"),
		"the check of MAC addresses deleted": OnHost("nft delete table bridge hawser", "macspoof"),
		"the check of MAC addresses flushed": OnHost("nft flush table bridge hawser", "macspoof"),
	},
})

var _ = Describe("DEL", func() {
	It("succeeds without the programs of legacy iptables, and names the masquerade that it leaves", func() {
		nstest.UseVariant("legacy")
		w := newWorld()
		a := w.Attach("one", everything(Object{"ipMasqBackend": "iptables"}), "10.1.0.3/24")
		c := a.As("DEL")
		w.Calls()
		var out Answer
		nstest.WithPrograms([]string{"dirname", "cat"}, func() { out = w.Call(c) }) // what fake needs
		Expect(out.Code).To(BeZero(), out.Stdout)
		Expect(out.Stderr).To(MatchRegexp(`^bridge: masquerade of .*one.*iptables-legacy-`))
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
		Expect(w.Cmd("iptables-legacy", "-t", "nat", "-S")).To(ContainSubstring("10.1.0.3"))
		w.Succeeds(c)
		Expect(w.Cmd("iptables-legacy", "-t", "nat", "-S")).NotTo(ContainSubstring("10.1.0.3"))
	})
})

var _ = It("DEL deletes a pair of the reference whose bridge no longer exists, and no pair of another plugin", func() {
	w, cont := newWorld(), nstest.NewNetns()
	nstest.Wire(nstest.End{Host: w.Host, Name: "cali1", Addrs: []string{"10.1.0.1/24"}},
		nstest.End{Host: cont, Name: "eth0", Addrs: []string{"10.1.0.2/24"}})
	del := Call{Command: "DEL", ID: "one", Netns: cont.Path, Conf: l3()}
	w.Succeeds(del)
	Expect(Names(cont, "veth")).To(ConsistOf("eth0"))
	w.Host.IP("link set cali1 down", "link set cali1 name veth1", "link add other type bridge",
		"link set veth1 master other")
	w.Succeeds(del)
	Expect(Names(cont, "veth")).To(ConsistOf("eth0"))
	IP(w.Host, "link del other")
	w.Succeeds(del)
	Expect(Names(cont, "veth")).To(BeEmpty())
})

var _ = Describe("CHECK", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("finds a bridge that is not promiscuous any more", func() {
		a := w.Attach("one", conf(Object{"promiscMode": true}))
		IP(w.Host, "link set dev br promisc off")
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring("promiscuous"))
	})

	It("finds another MAC address of an interface that is kept down", func() {
		a := w.Attach("one", conf(Object{"disableContainerInterface": true}))
		IP(a.Host, "link set eth0 address 02:00:00:00:00:77")
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring("02:00:00:00:00:77"))
	})

	It("ignores changes of the bridge by other programs", func() {
		a := w.Attach("one", everything(), "10.1.0.2/24", "2001:db8:1::2/64")
		for _, words := range []string{"link set dev br promisc on", "link set dev br address 02:00:00:00:00:99",
			"addr add 192.0.2.9/24 dev br", "link set dev br mtu 1300", "link add name br2 type bridge"} {
			IP(w.Host, "%s", words)
			w.Succeeds(a.As("CHECK"))
		}
		w.Cmd("nft", "add", "table", "inet", "others")
		w.Attach("two", everything(), "10.1.0.3/24") // the gateway exists, so the other address is not a conflict
		w.Succeeds(a.As("CHECK"))
	})

	It("ignores that another plugin isolated the port", func() {
		a := w.Attach("one", conf())
		IP(w.Host, "link set %s type bridge_slave isolated on", hostEnd(a.Result))
		w.Succeeds(a.As("CHECK"))
	})
})

var _ = Describe("GC", func() {
	It("on layer 2 calls no IPAM plugin", func() {
		w := newWorld()
		w.Attach("one", conf())
		w.Succeeds(Call{Command: "GC", Conf: conf(Object{"cni.dev/valid-attachments": []Object{}})})
		Expect(Names(w.Host, "")).To(Equal([]string{"br"}))
		Expect(w.Calls()).To(BeEmpty())
	})
})

var _ = Describe("STATUS", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	status := func(c Object) Call { return Call{Command: "STATUS", Conf: c} }

	It("succeeds in a layer 2 network", func() {
		w.Succeeds(status(conf()))
		Expect(w.Calls()).To(BeEmpty())
	})

	It("is code 50 if a link that is not a bridge has the bridge's name", Label("status"), func() {
		IP(w.Host, "link add name br type veth peer name x")
		Expect(w.Fails(status(conf()), cni.CodeUnavailable)).To(ContainSubstring(`"br"`))
	})

	It("is code 50 if the rules of macspoofchk cannot be created", func() {
		w.LockTable("bridge hawser")
		Expect(w.Fails(status(conf(Object{"macspoofchk": true})),
			cni.CodeUnavailable)).To(ContainSubstring("macspoofchk"))
		w.Cmd("mount", "-o", "remount,bind,ro", "/run")
		Expect(w.Fails(status(conf(Object{"macspoofchk": true})),
			cni.CodeUnavailable)).To(ContainSubstring("read-only file system"))
	})
})

var _ = Describe("at the same time", func() {
	It("20 first ADDs create one bridge, and 20 DELs keep it", Label("parallel"), func() {
		w := newWorld()
		const n = 20
		var conts [n]*nstest.Host
		var got [n]Answer
		program := nstest.Build("bridge")
		for i := range n {
			conts[i] = nstest.NewNetns()
			w.LendAddrs(fmt.Sprint("c", i), fmt.Sprintf("10.1.0.%d/24", i+2), fmt.Sprintf("2001:db8:1::%x/64", i+2))
		}
		each := func(make func(i int) Call) {
			GinkgoHelper()
			nstest.AtOnce(n, func(i int) {
				c := make(i)
				out := w.Run(nstest.Program{Path: program, Env: c.Vars(w.World), Stdin: c.Stdin()})
				got[i] = Ran(out)
			})
			for i := range n {
				Expect(got[i].Code).To(BeZero(), got[i].Stdout)
			}
		}
		each(func(i int) Call {
			return Call{Command: "ADD", ID: fmt.Sprint("c", i), Netns: conts[i].Path, Conf: everything()}
		})
		Expect(Names(w.Host, "bridge")).To(Equal([]string{"br"}))
		Expect(Show(w.Host, "br").Addrs()).To(ConsistOf("10.1.0.1/24", "2001:db8:1::1/64"))
		Expect(Names(w.Host, "veth")).To(HaveLen(n))
		Expect(strings.Count(w.Snapshot("nftables"), "masquerade")).To(BeNumerically("<", 20))
		for i := range n {
			Expect(Ping(conts[i], "10.1.0.1")).To(BeTrue())
			w.Succeeds(Call{Command: "CHECK", ID: fmt.Sprint("c", i), Netns: conts[i].Path, Conf: With(everything(),
				got[i].Added())})
		}
		each(func(i int) Call {
			return Call{Command: "DEL", ID: fmt.Sprint("c", i), Netns: conts[i].Path, Conf: everything()}
		})
		Expect(Names(w.Host, "")).To(Equal([]string{"br"}))
		Expect(w.Snapshot("nftables")).NotTo(ContainSubstring("elements"))
	})
})

var _ = Describe("the lock of legacy iptables, held by a program that hangs,", Label("kernel"), func() {
	var w *world
	var holder string

	// hold acquires the lock until the spec ends or calls release.
	hold := func() (release func()) {
		GinkgoHelper()
		holding := w.HoldLock("/run/xtables.lock")
		holder = fmt.Sprintf("held by process %d (flock)", holding.Pid)
		return func() { nstest.ReleaseLock(holding) }
	}
	waitedFor := func() bool { return strings.Contains(w.Cmd("cat", "/proc/locks"), "-> FLOCK") }
	both := l3(Object{"isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables"})

	BeforeEach(func() {
		nstest.UseVariant("legacy")
		w = newWorld()
	})

	It("ends ADD at the deadline of the call, and ADD is rolled back", Label("lock-deadline"), func() {
		w.Attach("live", both, Addrs(2)...)
		w.Calls()
		before := w.Snapshot()
		release := hold()
		cont := nstest.NewNetns()
		w.LendAddrs("two", Addrs(3)...)
		began := time.Now()
		says := w.Fails(Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: both,
			Ctx: nstest.DeadlineWhen(waitedFor)}, cni.CodeTryAgain)
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
		Expect(says).To(And(ContainSubstring(holder), Not(ContainSubstring("roll-back"))))
		Expect(w.Calls()).To(Equal([]string{"ADD two eth0", "DEL two eth0"}))
		release()
		Expect(w.Snapshot()).To(Equal(before))
		Expect(Names(cont, "")).To(BeEmpty())
	})

	It("leaves DEL time for the interface and the addresses, and the rules to the next DEL", Label("lock-del"), func() {
		before := w.Snapshot("iptables-legacy")
		began := time.Now()
		a := w.Attach("one", both, Addrs(2)...)
		// Two thirds are for the lock. The rest is longer than a whole ADD takes.
		given := nstest.Patience(max(2*time.Second, 30*time.Since(began)))
		w.Calls()
		release := hold()
		del := a.As("DEL")
		ctx, cancel := context.WithTimeout(context.Background(), given)
		defer cancel()
		del.Ctx = ctx
		says := w.Fails(del, cni.CodeTryAgain)
		Expect(says).To(ContainSubstring(holder))
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
		release()
		w.Succeeds(a.As("DEL"))
		Expect(w.Snapshot("iptables-legacy")).To(Equal(before))
	})
})
