package cost_test

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestCost(t *testing.T) { nstest.RunSpecs(t, "cost: what a call asks of the kernel") }

const (
	// vary is by how many system calls a call may differ from the same one: a pipe
	// that is not written yet is read twice.
	vary = 6
	// someBytes is the same for bytes: the runtime reads its list of mounts.
	someBytes = 1024
	// tries is how often a verb is measured before too much is too much: who waits for an event of the kernel
	// may be woken by one of something else, and the more often the busier the machine is.
	tries = 10
)

// busy returns how many other containers a busy node runs. A quiet one runs one.
func busy() int {
	if nstest.Quick() {
		return 50
	}
	return 200
}

var _ = Describe("a call asks of the kernel no more than its budget, quiet or busy", Label("budget"), Ordered,
	ContinueOnFailure, func() {
		var quiet, crowded node
		BeforeAll(func() {
			quiet, crowded = newNode(1), newNode(busy())
			crowded.clutter(busy())
		})
		for _, b := range budgets {
			It(b.name, func() {
				for _, n := range []node{quiet, crowded} {
					if b.plugin == "dhcp" {
						ServeDHCP(n.Host, "cni0", "10.88.200.1,10.88.200.100")
						DHCPDaemon(n.Host, n.Dir)
					}
				}
				b.isKept(func(try int) map[string]string {
					return b.faults(quiet.measure(b, try), crowded.measure(b, try))
				})
			})
		}
	})

// isKept has each verb keep its budget in one of the tries.
func (b budget) isKept(faults func(try int) map[string]string) {
	GinkgoHelper()
	left := slices.Clone(verbs)
	for try := range tries {
		found := faults(try)
		left = slices.DeleteFunc(left, func(verb string) bool { return found[verb] == "" })
		if len(left) == 0 {
			return
		}
		AddReportEntry(fmt.Sprint("try ", try), found, ReportEntryVisibilityFailureOrVerbose)
	}
	Fail(fmt.Sprintf("in none of %d tries: %v", tries, left))
}

var _ = Describe("a bridge of the administrator's, with an uplink,", func() {
	It("is not asked for its ports where the host forwards IPv6 anyway", func() {
		nstest.Need("tap")
		n := newNode(0)
		for _, args := range []string{"link add adm up type bridge", "tuntap add tap0 mode tap",
			"link set tap0 up master adm"} {
			IP(n.Host, "%s", args)
		}
		n.SetSysctl("net/ipv6/conf/adm/accept_ra", "1")
		n.SetSysctl("net/ipv6/conf/adm/forwarding", "1")
		p := pod("one", "eth0", nstest.NewNetns())
		e := Step{Plugin: "bridge", Keys: Merge(Object{"bridge": "adm"}, ipam(single))}
		r := n.Trace("bridge", n.CallOf("ADD", p, e))
		Expect(costOf(r).dumps).To(BeZero(), sent(r))
		Expect(n.Sysctl("net/ipv6/conf/adm/accept_ra")).To(Equal("1"), "it is used as it is found")
	})
})

var _ = It("a budget is there of each plugin", func() {
	var have []string
	for _, b := range slices.AppendSeq(slices.Clone(budgets), maps.Values(kernelBudgets)) {
		have = append(have, b.plugin)
	}
	Expect(have).To(ContainElements(nstest.Plugins()))
})

// most is what a verb may cost. VERSION is the start of a Go program alone.
func (b budget) most(verb string) cost {
	if verb == "VERSION" {
		return cost{count: count{calls: 31}}
	}
	c := cost{programs: strings.TrimSpace(b.delegate + " " + b.programs[verb]),
		count: b.costs[slices.Index(verbs, verb)-1]}
	if b.delegate != "" && oneProgram() {
		c.programs = b.programs[verb]
		c.calls += inProcess[verb]
	}
	if verb == "ADD" && !hasHandles() {
		c.calls += withoutHandles
	}
	return c
}

func hasHandles() bool {
	_, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/proc/self/ns/net", unix.AT_SYMLINK_FOLLOW)
	return err == nil
}

// perOther is how many bytes one more container may add to what a call reads: in the one program also host-local's.
func (b budget) perOther() int64 {
	GinkgoHelper()
	if b.delegate != "" && oneProgram() {
		return b.state + leaseBytes
	}
	return b.state
}

// oneProgram says whether the plugins are files of one program, which is host-local itself.
func oneProgram() bool {
	GinkgoHelper()
	return os.SameFile(nstest.Must(os.Stat(nstest.Build("bridge"))), nstest.Must(os.Stat(nstest.Build(hostLocal))))
}

// faults are the ways in which the calls exceed the budget, by verb.
func (b budget) faults(one, many []*trace.Record) map[string]string {
	faults := map[string]string{}
	for i, verb := range verbs {
		want, got, then := b.most(verb), costOf(one[i]), costOf(many[i])
		AddReportEntry(verb, got.cost.String(), ReportEntryVisibilityFailureOrVerbose)
		what := slices.Concat(got.exceeds(want), waits(one[i]), waits(many[i]), threads(one[i]))
		if verb == "ADD" && !b.grows[verb].received {
			what = append(what, fullDumps(one[i])...)
		}
		if len(what) != 0 {
			faults[verb] += fmt.Sprintf("%s: %s, the budget is %s: %s\n%s", verb, got, want,
				strings.Join(what, ", "), sent(one[i]))
		}
		if what = then.grown(got, b.perOther(), b.grows[verb]); len(what) != 0 {
			faults[verb] += fmt.Sprintf("%s with %d others: %s, with one %s: %s\n%s", verb, busy(), then, got,
				strings.Join(what, ", "), sent(many[i]))
		}
	}
	return faults
}

// verbs are in the order in which they are called.
var verbs = []string{"VERSION", "ADD", "CHECK", "STATUS", "GC", "DEL"}

// measure counts each verb for a container beside a neighbor that stays, so that
// what containers share is there.
func (n node) measure(b budget, try int) (records []*trace.Record) {
	GinkgoHelper()
	own := pod(fmt.Sprintf("own%d", try), "eth0", nstest.NewNetns())
	neighbour := pod(fmt.Sprintf("neighbour%d", try), "eth0", nstest.NewNetns())
	if before := (List{{Plugin: "bridge", Keys: bridge(dual)}}); b.chained {
		for _, p := range []*Pod{own, neighbour} {
			DeferCleanup(n.Must, "DEL", n.Up(p, before), before)
		}
	}
	theirs := List{{Plugin: b.plugin, Keys: b.conf(9080)}}
	n.Up(neighbour, theirs)
	defer n.Must("DEL", neighbour, theirs)
	list := List{{Plugin: b.plugin, Keys: b.conf(8080)}}
	for _, verb := range verbs {
		asked := list
		if verb == "GC" {
			asked = list.Valid(append([]*Pod{own, neighbour}, n.pods...)...)
		}
		r := n.Trace(b.plugin, n.CallOf(verb, own, asked[0]))
		if verb == "ADD" {
			own.Result = []byte(r.Stdout)
		}
		records = append(records, r)
	}
	return records
}

// cost is what a call took of the kernel. Programs are those that it started; the numbers are the plugin's own.
type cost struct {
	programs string
	count
}

// count is system calls, and of netlink what was sent, the messages in that and those that asked for a dump.
type count struct{ calls, sends, messages, dumps int }

// measured is what one call took.
type measured struct {
	cost
	received, read int64
}

func costOf(r *trace.Record) measured {
	p := r.Programs[0]
	// Which iptables it is depends on the machine.
	names := strings.Fields(strings.NewReplacer("-nft", "", "-legacy", "").Replace(strings.Join(r.Names()[1:], " ")))
	slices.Sort(names) // some run beside each other
	c := measured{received: p.Received, read: p.Read, cost: cost{programs: strings.Join(names, " "),
		count: count{calls: p.Calls, sends: p.Sends, messages: len(p.Messages)}}}
	for _, m := range p.Messages {
		if m.Dump() {
			c.dumps++
		}
	}
	return c
}

// String writes a cost as the table has it.
func (c cost) String() string {
	return strings.TrimSpace(fmt.Sprintf("{%d, %d, %d, %d} %s", c.calls, c.sends, c.messages, c.dumps, c.programs))
}

// withSlack adds a tenth, rounded up, so that a small change does not edit the table. Programs and dumps have no slack.
func withSlack(most int) int { return most + (most+9)/10 }

func (c cost) exceeds(most cost) (what []string) {
	if c.programs != most.programs {
		what = append(what, "other programs")
	}
	for _, n := range []struct {
		of          string
		is, maximum int
	}{{"sends", c.sends, withSlack(most.sends)}, {"messages", c.messages, withSlack(most.messages)},
		{"dumps", c.dumps, most.dumps}, {"system calls", c.calls, withSlack(most.calls)}} {
		if n.is > n.maximum {
			what = append(what, fmt.Sprintf("%d %s too many", n.is-n.maximum, n.of))
		}
	}
	return what
}

// grown says what is more than it was, but for the state of others that is read and for what may grow.
func (c measured) grown(was measured, state int64, may growth) []string {
	was.calls += vary
	if may.calls {
		was.calls = c.calls
	}
	what := c.exceeds(was.cost)
	if c.received > was.received && !may.received {
		what = append(what, fmt.Sprintf("%d bytes of netlink received, not %d", c.received, was.received))
	}
	if most := was.read + someBytes + int64(busy())*state; c.read > most && !may.read {
		what = append(what, fmt.Sprintf("%d bytes read, not %d", c.read, most))
	}
	return what
}

func sent(r *trace.Record) string {
	var s strings.Builder
	for _, m := range r.Programs[0].Messages {
		s.WriteString(m.String() + "\n")
	}
	return s.String()
}

func waits(r *trace.Record) (all []string) {
	for _, p := range r.Programs {
		if strings.Contains(p.Name(), "tables") {
			continue
		}
		for _, s := range p.Sleeps {
			all = append(all, p.Name()+" sleeps: "+s)
		}
	}
	return all
}

// threads are the files of single threads that were opened below /proc. The kernel keeps their
// directories until the thread ends, and who waits for the program then spins for milliseconds until
// both have removed them.
func threads(r *trace.Record) (all []string) {
	for _, path := range r.Programs[0].Threads {
		all = append(all, "opens "+path)
	}
	return all
}

// fullDumps are the messages that ask for every link, address, route or rule.
func fullDumps(r *trace.Record) (all []string) {
	for _, m := range r.Programs[0].Messages {
		if m.Dump() && m.Protocol == unix.NETLINK_ROUTE && m.Index == 0 {
			all = append(all, m.String())
		}
	}
	return all
}

// node is a host on which containers run, which end with it.
type node struct {
	*World
	pods []*Pod
}

// newNode makes one that runs this many containers, on network "net" with a bridge,
// masquerade, a published port and a sysctl each. One namespace is all of them.
func newNode(containers int) node {
	GinkgoHelper()
	n := node{World: NewNode()}
	n.Spoiled = true
	Uplink(n.Host)
	for _, device := range []string{"dev8080", "dev9080"} {
		IP(n.Host, "link add %s type veth peer name %sp", device, device)
	}
	crowd := nstest.NewNetns()
	for i := range containers {
		n.pods = append(n.pods, pod(fmt.Sprintf("crowd%d", i), fmt.Sprintf("eth%d", i), crowd))
	}
	const workers = 4
	nstest.AtOnce(workers, func(worker int) {
		for i := worker; i < containers; i += workers {
			n.Up(n.pods[i], List{{Plugin: "bridge", Keys: bridge(dual, masquerade)},
				{Plugin: "portmap", Keys: portmap(20000 + i)}, {Plugin: "tuning", Keys: tuning(i)}})
		}
	})
	return n
}

// pod is a container as runtimes make them, with nothing set.
func pod(id, ifName string, netns *nstest.Host) *Pod {
	return &Pod{Host: netns, Network: "net", Call: Call{ID: id, IfName: ifName, Netns: netns.Path}}
}

// clutter is what a node has of others besides containers: addresses, routes, rules.
func (n node) clutter(of int) {
	GinkgoHelper()
	ip := "link add clutter type bridge\nlink set clutter up\n"
	nft := "add table inet clutter\nadd chain inet clutter rules\n"
	for i := range of {
		at := fmt.Sprintf("198.18.%d.%d", i/250, i%250+1)
		ip += fmt.Sprintf("addr add %s/32 dev clutter\nroute add 203.0.113.%d dev clutter table 7\n", at, i)
		ip += fmt.Sprintf("route add 192.0.2.%d dev clutter\nrule add from %s lookup 7\n", i, at)
		nft += "add rule inet clutter rules ip saddr " + at + " return\n"
	}
	for _, p := range []nstest.Program{{Path: "ip", Args: []string{"-batch", "-"}, Stdin: ip},
		{Path: "nft", Args: []string{"-f", "-"}, Stdin: nft}} {
		out := n.Run(p)
		Expect(out.Exit).To(BeZero(), out.Stderr)
	}
}

var (
	dual       = []string{"10.88.0.0/16", "fd00:88::/64"}
	single     = dual[:1]
	masquerade = Object{"ipMasq": true}
	iptables   = Object{"ipMasq": true, "ipMasqBackend": "iptables"}
)

func ipam(subnets []string) Object { return Object{"ipam": HostLocal(subnets...)} }

func fixed(addresses ...string) Object {
	var list []Object
	for _, a := range addresses {
		list = append(list, Object{"address": a})
	}
	return Object{"ipam": Object{"type": "static", "addresses": list}}
}

func bridge(subnets []string, more ...Object) Object {
	return Merge(Object{"bridge": "cni0", "isDefaultGateway": true}, ipam(subnets), Merge(more...))
}

// apart are the subnets of ptp and ipvlan, whose ADD lists the ports of a bridge with the same subnet.
var apart = []string{"10.89.0.0/16", "fd00:89::/64"}

func ptp(subnets []string, more ...Object) Object {
	return Merge(ipam(apart[:len(subnets)]), Merge(more...))
}

func onUplink(subnets []string, more ...Object) Object {
	return Merge(ipam(subnets), Object{"master": "up0", "enabledad": false}, Merge(more...))
}

func portmap(port int, more ...Object) Object {
	return Merge(append(more, ports(port, "tcp"))...)
}

func ports(first int, protocols ...string) Object {
	var mappings []Object
	for i, p := range protocols {
		mappings = append(mappings, Object{"hostPort": first + i, "containerPort": 80 + i, "protocol": p})
	}
	return Object{"runtimeConfig": Object{"portMappings": mappings}}
}

// limited are limits of both directions.
var limited = Object{"ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000}

func tuning(n int) Object {
	return Object{"sysctl": Object{"net.ipv4.conf.IFNAME.arp_filter": "1"},
		"mac": fmt.Sprintf("c2:00:00:00:%02x:%02x", n>>8, n&255)}
}

// ruleset is the JSON of nft list.
type ruleset struct {
	Nftables []struct {
		Rule struct {
			Chain  string
			Handle int
			Expr   []struct{ Counter struct{ Packets int } }
		}
	}
}

// countRules adds a counter before each rule of table inet hawser.
func countRules(n *World) {
	GinkgoHelper()
	var rules ruleset
	var script strings.Builder
	n.JSON(&rules, "nft", "-j", "list", "table", "inet", "hawser")
	for _, r := range rules.Nftables {
		if r.Rule.Chain != "" {
			fmt.Fprintf(&script, "insert rule inet hawser %s handle %d counter\n", r.Rule.Chain, r.Rule.Handle)
		}
	}
	out := n.Run(nstest.Program{Path: "nft", Args: []string{"-f", "-"}, Stdin: script.String()})
	Expect(out.Exit).To(BeZero(), out.Stderr)
}

// met returns how many rules all packets met since countRules, by chain.
func met(n *World) map[string]int {
	GinkgoHelper()
	var rules ruleset
	n.JSON(&rules, "nft", "-j", "list", "table", "inet", "hawser")
	sum := map[string]int{}
	for _, r := range rules.Nftables {
		for _, e := range r.Rule.Expr {
			sum[r.Rule.Chain] += e.Counter.Packets
		}
	}
	return sum
}

var _ = Describe("a packet of an established connection", Label("budget", "kernel"), func() {
	It("meets few rules, however many containers there are, and none of NAT", func() {
		nstest.Need("nft", "nft-inet-nat")
		n := NewNode()
		n.SetBridgeNF(false) // neighbor discovery inside the bridge is not counted
		n.Router()
		list := Usual("").With("firewall", Object{"ingressPolicy": nil})
		one := n.Up(NewPod("one"), list)
		n.Up(NewPod("other"), list.Port(9000))
		countRules(n)
		const more = 100
		for to, want := range map[string]map[string]int{
			"192.0.2.2":   {"portmap_guard_v2": 4, "firewall_forward12_v2": 4, "firewall_clear12_v2": 2},
			"2001:db8::2": {"portmap_guard_v2": 4, "firewall_forward12_v2": 6, "firewall_clear12_v2": 2},
		} {
			Expect(Ping(one.Host, to)).To(BeTrue()) // neighbors are known from here on
			pinged := func(count int) map[string]int {
				before := met(n)
				one.Cmd("ping", "-n", "-q", "-i", "0.002", "-c", fmt.Sprint(count), to)
				after := met(n)
				for chain := range after {
					after[chain] -= before[chain]
				}
				return after
			}
			few, many := pinged(1), pinged(1+more)
			for chain := range many { // of an echo and its answer; neighbor discovery is less than half a rule
				each := math.Round(float64(many[chain]-few[chain]) / more)
				Expect(each).To(BeEquivalentTo(want[chain]), "%s: %s", to, chain)
			}
		}
	})
})
