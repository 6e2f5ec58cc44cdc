// The specs of this directory run the plugins, as programs, on hosts on which things are not as they should be.
package hostile_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestHostile(t *testing.T) { nstest.RunSpecs(t, "the plugins in a hostile environment") }

// hold has another program hold a lock, until the spec ends or release is called.
func hold(n *World, lock string) (release func()) {
	GinkgoHelper()
	holder := n.Start(nstest.Program{Path: "flock", Args: []string{"-o", lock, "sh", "-c",
		"exec sleep 60 >/dev/null 2>&1"}})
	Eventually(func() string { return n.Cmd("cat", "/proc/locks") }).Should(MatchRegexp(`FLOCK .* %d `,
		holder.Process.Pid))
	return func() { Expect(holder.Process.Kill()).To(Succeed()) }
}

var _ = Describe("a lock that another program holds", Label("kernel", "held-lock"), func() {
	It("is not even looked at when it is the xtables lock and the rules are in nftables", func() {
		n := NewNode()
		n.Must("DEL", n.Up(NewPod("first"), Usual("")), Usual(""))
		hold(n, "/run/xtables.lock")
		began := time.Now()
		p := n.Up(NewPod("one"), Usual(""))
		n.Must("CHECK", p, Usual(""))
		n.Must("DEL", p, Usual(""))
		n.Must("GC", p, Usual("").Valid())
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
	})

	DescribeTable("is waited for, and no longer than it is held", func(backend, lock string) {
		if backend == "iptables" {
			nstest.UseVariant("legacy")
		}
		n := NewNode()
		first := n.Up(NewPod("first"), Usual(backend))
		inode := strings.TrimSpace(n.Cmd("stat", "-c", "%i", lock))
		for _, command := range []string{"ADD", "DEL"} {
			release := hold(n, lock)
			done := make(chan struct{})
			go func() {
				defer GinkgoRecover()
				defer close(done)
				if command == "ADD" {
					n.Up(NewPod("one"), Usual(backend).Port(8081))
				} else {
					n.Must("DEL", first, Usual(backend))
				}
			}()
			Eventually(func() string { return n.Cmd("cat", "/proc/locks") }).Should(MatchRegexp(`-> FLOCK .*:%s `,
				inode))
			Expect(done).NotTo(BeClosed(), command)
			release()
			Eventually(done).Should(BeClosed(), command)
		}
	},
		Entry("of the leases", "", "/var/lib/cni/networks/net/lock"),
		Entry("of the rules", "", "/run/hawser/nft.lock"),
		Entry("of host ports", "", "/run/hawser/portmap/lock"),
		Entry("of the originals", "", "/run/cni/tuning/.hawser/lock"),
		Entry("of legacy iptables", "iptables", "/run/xtables.lock"),
	)
})

// churn makes and deletes links, addresses, routes and namespaces of others, with
// eight programs, until the spec ends.
func churn(n *World) {
	GinkgoHelper()
	for i := range 8 {
		lines := []string{fmt.Sprintf("link add churn%d type veth peer name other%d", i, i),
			fmt.Sprintf("addr add 198.18.%d.1/24 dev churn%d", i, i),
			fmt.Sprintf("link set churn%d up", i), fmt.Sprintf("route add 203.0.113.%d dev churn%d", i,
				i), fmt.Sprintf("link del churn%d", i)}
		if i%4 == 3 {
			lines = []string{fmt.Sprintf("netns add churn%d", i),
				fmt.Sprintf("link add churn%d type veth peer name other netns churn%d", i,
					i), fmt.Sprintf("netns del churn%d", i)}
		}
		// What one cannot do because of another, it says for each line.
		n.Start(nstest.Program{Path: "sh", Args: []string{"-c", "exec ip -force -batch - 2>/dev/null"},
			Stdin: strings.Repeat(strings.Join(lines, "\n")+"\n", 20000)})
	}
}

// links is how many links the host has had.
func links(n *World, probe string) int {
	GinkgoHelper()
	n.Cmd("ip", "link", "add", probe, "type", "bridge")
	defer n.Cmd("ip", "link", "del", probe)
	return Show(n.Host, probe).Index
}

var _ = Describe("links and namespaces that come and go all the time", Label("kernel", "churn"), func() {
	It("make none of 500 ADDs and DELs fail, and none of them slow", func() {
		const workers, pods = 4, 250
		list := Usual("").Only("bridge")
		n := NewNode()
		n.Must("DEL", n.Up(NewPod("first"), list), list)
		churn(n)
		Eventually(func() string { return n.Cmd("ip", "-o", "link") }).Should(ContainSubstring("churn"))
		before := links(n, "before")
		var calls, made atomic.Int64
		// Until others have made as many links as the 500 calls, or the spec shows nothing.
		enough := func(probe string) bool { return links(n, probe)-before-2*int(made.Load()) >= 2*pods }
		nstest.AtOnce(workers, func(worker int) {
			call := func(command string, p *Pod) {
				began := time.Now()
				n.Must(command, p, list)
				Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang), command)
				calls.Add(1)
			}
			probe := fmt.Sprintf("probe%d", worker)
			for i := worker; i < pods || i < 8*pods && !enough(probe); i += workers {
				p := NewPod(fmt.Sprintf("c%d", i))
				made.Add(1) // two links
				call("ADD", p)
				if i%10 == 0 {
					call("CHECK", p)
				}
				call("DEL", p)
			}
		})
		AddReportEntry("churn", fmt.Sprintf("%d calls, %d links", calls.Load(), links(n, "last")-before))
		Expect(enough("last")).To(BeTrue(), "%d links, and %d containers", links(n, "last")-before, made.Load())
	})
})

var _ = Describe("a host without iptables and nft, with an empty PATH", Label("kernel", "no-programs"), func() {
	It("is served in full", func() {
		nstest.Need("nft-inet-nat")
		n := NewNode()
		n.Env = []string{"PATH="}
		first, second := n.Up(NewPod("first"), Usual("")), NewPod("second")
		n.Must("STATUS", second, Usual(""))
		n.Up(second, Usual("").Port(8081))
		n.Must("CHECK", first, Usual(""))
		n.Must("DEL", first, Usual(""))
		n.Must("CHECK", second, Usual("").Port(8081))
		n.Must("GC", second, Usual("").Valid())
	})

	It("is told so by ADD and STATUS where iptables is asked for, and nothing is left", func() {
		nstest.Need("nft-inet-nat")
		n := NewNode()
		// What an ADD that fails may leave is there.
		n.Must("DEL", n.Up(NewPod("first"), Usual("")), Usual(""))
		before, p := n.Snapshot("links", "nftables", "iptables-legacy"), NewPod("one")
		n.Env = []string{"PATH="}
		for _, e := range Usual("iptables").Only("bridge", "portmap") {
			q := *p
			q.Result = []byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + p.Netns +
				`"}],"ips":[{"address":"10.88.0.2/24","interface":0}]}`)
			Expect(n.Chain("ADD", &q, List{e}).Stdout).To(ContainSubstring("iptables-restore"), e.Plugin)
			Expect(n.Chain("STATUS", &q, List{e}).Failed(50)).To(ContainSubstring("iptables-restore"), e.Plugin)
			n.Must("DEL", &q, List{e})
		}
		Expect(n.Snapshot("links", "nftables", "iptables-legacy")).To(Equal(before))
		Expect(p.Snapshot("links")).NotTo(ContainSubstring("eth0"))
	})

	It("does without the programs that ADD had, on iptables over nf_tables, but for firewall's rules", func() {
		nstest.Need("iptables-nft")
		n, list := NewNode(), Usual("iptables")
		nstest.UseVariant("nft")
		n.Must("DEL", n.Up(NewPod("first"), list), list)
		before := n.Snapshot("links", "nftables")
		without := func(l List) string {
			p := n.Up(NewPod("one"), l)
			n.Env = []string{"PATH="}
			n.Must("DEL", p, l)
			n.Env = nil
			return n.Snapshot("links", "nftables")
		}
		Expect(without(list.Only("bridge", "portmap", "tuning"))).To(Equal(before))
		Expect(without(list)).To(ContainSubstring("10.88.0."))
		n.Must("GC", NewPod("one"), list.Valid())
		Expect(n.Snapshot("links", "nftables")).To(Equal(before))
	})
})

// reached asks the pod's server from outside through its host port, and lets the pod ask outside.
func reached(n *World, p *Pod, outside *nstest.Host, port string) {
	GinkgoHelper()
	p.Serve("tcp", p.Addr()+":80")
	seen := nstest.Must(outside.Ask("tcp", "192.0.2.1:"+port))
	Expect(seen).To(HavePrefix("192.0.2.2:"))
	seen = nstest.Must(p.Ask("tcp", outside.Serve("tcp", "192.0.2.2:0")))
	Expect(seen).To(HavePrefix("192.0.2.1:"), "masqueraded")
}

// kinds are the backends, and the iptables that there is.
var kinds = map[string]struct{ backend, variant string }{
	"nftables": {"", "nft"}, "iptables over nf_tables": {"iptables", "nft"}, "legacy iptables": {"iptables", "legacy"},
}

var _ = DescribeTable("somebody flushes the rules of all between ADD and the rest", Label("kernel", "reload"), func(
	kind, flush string, works bool,
) {
	k := kinds[kind]
	nstest.UseVariant(k.variant)
	n := NewNode()
	outside := nstest.NewOutside(n.Host)
	entries := Usual(k.backend)
	p := n.Up(NewPod("one"), entries)
	n.Cmd("bash", "-ec", flush)
	a := n.Chain("CHECK", p, entries)
	Expect(a.Code).To(Equal(1), a.Stdout)
	Expect(a.Stdout).To(ContainSubstring(`"code": 101`))
	if works { // as long as FORWARD does not drop
		Expect(a.Stdout).NotTo(ContainSubstring("inet hawser"))
		reached(n, p, outside, "8080")
	}
	if flush == flushIPTables {
		Expect(n.Cmd("nft", "list", "chain", "inet", "hawser", "portmap_guard_v1")).To(ContainSubstring("drop"),
			"containers are kept from the host's loopback")
	}
	// The next one puts back what all share.
	next := n.Up(NewPod("next"), entries.Port(8081))
	n.Must("CHECK", next, entries.Port(8081))
	reached(n, next, outside, "8081")
	n.Cmd("bash", "-ec", flush)
	for _, q := range []*Pod{p, next} {
		n.Must("DEL", q, entries)
		n.Must("DEL", q, entries)
	}
	Expect(Left(n.Host)).To(BeEmpty())
	Expect(n.Sysctl("net/ipv4/conf/cni0/route_localnet")).To(Equal("0"), "and nothing would guard it")
},
	Entry("with nftables: nft flush ruleset", "nftables", "nft flush ruleset", false),
	Entry("with nftables: iptables -F, as firewalld does (CVE-2025-54388, CVE-2025-54410)", "nftables", flushIPTables,
		true),
	Entry("with nftables: the rules of one table", "nftables", "nft flush table inet hawser", false),
	Entry("with iptables over nf_tables: nft flush ruleset", "iptables over nf_tables", "nft flush ruleset", false),
	Entry("with iptables over nf_tables: iptables -F, as firewalld does (CVE-2025-54388, CVE-2025-54410)",
		"iptables over nf_tables", flushIPTables, false),
	Entry("with iptables over nf_tables: iptables -t nat -F", "iptables over nf_tables", "iptables -t nat -F", false),
	Entry("with legacy iptables: iptables -F, as firewalld does (CVE-2025-54388, CVE-2025-54410)", "legacy iptables",
		flushIPTables, false),
	Entry("with legacy iptables: nft flush ruleset", "legacy iptables", "nft flush ruleset", false),
)

// flushIPTables empties and removes every chain of the tables that firewalls use.
const flushIPTables = `for p in iptables ip6tables; do
	for t in raw mangle nat filter; do $p -t $t -F; $p -t $t -X; done
done`
