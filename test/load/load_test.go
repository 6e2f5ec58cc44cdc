// Package load_test runs whole lists of plugins at random: many containers in parallel, and Hawser's plugins
// alternately with the reference's on one node. All random choices follow from the seed that ginkgo prints. It is the
// same in each run unless -ginkgo.seed sets another one.
package load_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestLoad(t *testing.T) { nstest.RunSpecs(t, "the plugins under load") }

const workers = 64

// limited replaces the backend for a list that limits bandwidth and routes by source.
const limited = "limited"

// containers returns the number of containers, which is larger with HAWSER_LOAD. iptables lists and restores the rules
// of all containers in each call, and the kernel waits for each IFB that it removes.
func containers(backend string) int {
	switch {
	case os.Getenv("HAWSER_LOAD") != "":
		return 500
	case backend == limited:
		return 100
	case nstest.Quick():
		return 200
	case backend == "iptables":
		return 150
	}
	return 300
}

// lasting returns the duration of the load on one of the two backends, half of HAWSER_LOAD.
func lasting() time.Duration {
	usual := "10s"
	if nstest.Quick() {
		usual = "3s"
	}
	d := nstest.Must(time.ParseDuration(cmp.Or(os.Getenv("HAWSER_LOAD"), usual)))
	return d / 2
}

var _ = DescribeTable("hundreds of containers, 64 in parallel, leave nothing", Label("kernel", "crowd"), func(
	backend string,
) {
	n := NewNode()
	l := &load{World: n, entries: roomy(backend), counts: map[string]int{}, owners: map[string]string{}}
	l.warm = n.Up(NewPod("warm"), l.entries)
	small := l.peaks()
	links, rest := n.Snapshot("links"), l.rest()
	pods := make([]*pod, containers(backend))
	for i := range pods {
		pods[i] = &pod{Pod: NewPod(fmt.Sprintf("c%d", i)), entries: l.entries.Port(10000 + i)}
		if backend == limited && i%2 == 1 { // two workers' interfaces of one container
			pods[i].Unpin()
			first := *pods[i-1].Pod
			pods[i].Pod, first.IfName = &first, "eth1"
		}
	}
	l.fill(pods)
	full := l.peaks()
	if backend == "" {
		l.look()
	}
	l.shake(pods, lasting())
	l.gc(pods) // the runtime has restarted
	for _, p := range pods {
		p.Unpin()
	}
	l.gc(nil) // the node has restarted
	AddReportEntry("load", fmt.Sprintf("seed %d: %v", GinkgoRandomSeed(), l.counts))
	Eventually(func() string { return n.Snapshot("links") }).Should(Equal(links)) // removed with their namespaces
	Expect(l.rest()).To(Equal(rest))
	after := l.peaks()
	AddReportEntry("load, memory", fmt.Sprintf("KiB with one container %v, with all %v, afterwards %v", kib(small),
		kib(full), kib(after)))
	for name, peak := range small {
		Expect(after[name]).To(BeNumerically("<", peak+1<<20), "the memory of %s afterwards", name)
		if backend == "" { // the output of iptables grows
			Expect(full[name]).To(BeNumerically("<", peak+1<<20), "the memory of %s on a full node", name)
		}
	}
},
	Entry("with nftables", ""), Entry("with iptables", Label("slow"), "iptables"),
	Entry("with limits, and two interfaces routed by source in each container", Label("slow"), limited),
)

// roomy returns the list of a node with addresses for all containers.
func roomy(backend string) List {
	ipam := Object{"ipam": HostLocal("10.88.0.0/16", "fd00:88::/64")}
	if backend == limited {
		return append(Usual("").Only("bridge").With("bridge", ipam), Step{Plugin: "sbr"},
			Step{Plugin: "bandwidth", Keys: Object{"ingressRate": 800000000, "ingressBurst": 8000000,
				"egressRate": 800000000, "egressBurst": 8000000}})
	}
	return Usual(backend).With("bridge", ipam)
}

// look measures commands of the tool on the full node. Only the quickest run counts, because the others wait for memory
// and caches that other programs use.
func (l *load) look() {
	GinkgoHelper()
	for _, args := range [][]string{{"ls"}, {"explain"}, {"explain", "cni0"}, {"explain", l.warm.ID}} {
		quickest := time.Hour
		for range 5 {
			out := l.Run(nstest.Program{Path: nstest.Build("hawser"), Args: args})
			Expect(out.Exit).To(BeZero(), out.Stderr)
			Expect(out.Stdout).To(ContainSubstring(l.warm.ID))
			quickest = min(quickest, out.CPU)
		}
		AddReportEntry("look", fmt.Sprintf("hawser %v: %v", args, quickest))
		Expect(quickest).To(BeNumerically("<", nstest.Patience(200*time.Millisecond)), "hawser %v", args)
	}
}

func (l *load) rest() string {
	GinkgoHelper()
	return l.Snapshot("nftables", "iptables-legacy") +
		l.Cmd("sh", "-c", "cd /var/lib/cni/networks/net && ls -I 'last_reserved_ip.*'; "+
			"ls /run/hawser/portmap /run/hawser/sbr /run/hawser/tuning/* /run/cni/tuning 2>/dev/null || true")
}

func kib(sizes map[string]int64) map[string]int64 {
	out := map[string]int64{}
	for name, size := range sizes {
		out[name] = size >> 10
	}
	return out
}

// load has the state that all workers share.
type load struct {
	*World
	entries List
	warm    *Pod // the first container, which stays

	// A runtime calls GC only while it calls nothing else of the network.
	calls  sync.RWMutex
	failed atomic.Bool

	mu     sync.Mutex
	counts map[string]int
	owners map[string]string // of the addresses
}

// pod is a container of one worker.
type pod struct {
	*Pod
	entries List
	up      bool // ADD succeeded, and the runtime knows the container

	forgotten bool // the runtime has lost the container
}

func (l *load) fill(pods []*pod) {
	l.work(workers, func(w int) {
		for i := w; i < len(pods) && !l.failed.Load(); i += workers {
			pods[i].bring(l)
		}
	})
}

// shake makes each worker run random calls for its own containers for some time.
func (l *load) shake(pods []*pod, during time.Duration) {
	end := time.Now().Add(during)
	l.work(workers, func(w int) {
		r := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), uint64(w)))
		for time.Now().Before(end) && !l.failed.Load() {
			l.step(r, pods, w+workers*r.IntN((len(pods)-w-1)/workers+1))
		}
	})
}

func (l *load) work(n int, do func(worker int)) {
	GinkgoHelper()
	nstest.AtOnce(n, func(w int) {
		defer func() {
			if p := recover(); p != nil {
				l.failed.Store(true) // all workers stop
				panic(p)
			}
		}()
		do(w)
	})
}

func (l *load) step(r *rand.Rand, pods []*pod, i int) {
	p := pods[i]
	if r.IntN(500) == 0 {
		l.gc(pods)
		return
	}
	l.calls.RLock()
	defer l.calls.RUnlock()
	switch dice := r.IntN(20); {
	case dice == 0:
		l.Must("STATUS", p.Pod, p.entries)
		l.count("STATUS")
	case !p.up:
		p.bring(l)
	case dice < 8:
		l.Must("CHECK", p.Pod, p.entries)
		l.count("CHECK")
	case dice == 8:
		p.up, p.forgotten = false, true // the runtime died; DEL or GC will come
		l.release(p)
		l.count("forgotten")
	default:
		p.take(l, r.IntN(4))
	}
}

// bring attaches the container. A forgotten one first gets its DEL.
func (p *pod) bring(l *load) {
	GinkgoHelper()
	if p.up {
		return
	}
	if p.forgotten {
		l.Must("DEL", p.Pod, p.entries)
	}
	p.Result, p.forgotten = nil, false
	l.Up(p.Pod, p.entries)
	p.up = true
	l.own(p)
	l.count("ADD")
}

// take detaches the container, in one of the ways in which runtimes do.
func (p *pod) take(l *load, way int) {
	GinkgoHelper()
	p.up = false
	l.release(p)
	q := *p.Pod
	switch way {
	case 1:
		q.Netns = "" // without the sandbox
	case 2:
		q.Result = nil // without the cache
	case 3:
		l.Must("DEL", &q, p.entries) // repeated
	}
	l.Must("DEL", &q, p.entries)
	l.count("DEL")
}

func (l *load) own(p *pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ip := range p.Decode().IPs {
		Expect(l.owners).NotTo(HaveKey(ip.Address), "%s of %s was assigned to %s", ip.Address, l.owners[ip.Address],
			p.ID)
		l.owners[ip.Address] = p.ID + p.IfName
	}
}

// release forgets the container's addresses, before another container can get them.
func (l *load) release(p *pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for address, id := range l.owners {
		if id == p.ID+p.IfName {
			delete(l.owners, address)
		}
	}
}

func (l *load) count(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[what]++
}

// gc runs a GC in which the first container and those that are up are valid.
func (l *load) gc(pods []*pod) {
	GinkgoHelper()
	l.calls.Lock()
	defer l.calls.Unlock()
	l.count("GC")
	valid := []*Pod{l.warm}
	for _, p := range pods {
		if p.up {
			valid = append(valid, p.Pod)
		}
	}
	l.Must("GC", &Pod{Network: "net"}, l.entries.Valid(valid...))
	for _, p := range pods {
		if p.up {
			l.Must("CHECK", p.Pod, p.entries)
			return // workers check the others
		}
	}
}

// peaks returns the memory that each program needs for a CHECK, in bytes. It uses small pages, because pages of 2 MiB,
// which Debian's kernels give to heaps while they have some, would change the result.
func (l *load) peaks() map[string]int64 {
	GinkgoHelper()
	Expect(unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0)).To(Succeed()) // also for child processes
	out := map[string]int64{}
	for _, e := range l.entries {
		for _, prog := range l.Trace(e.Plugin, l.CallOf("CHECK", l.warm, e)).Programs {
			if !strings.Contains(prog.Name(), "tables") { // iptables needs more
				out[prog.Name()] = max(out[prog.Name()], prog.Peak)
			}
		}
	}
	return out
}

var _ = It("64 containers in parallel get a device of the host each, and return it", Label("slow"), func() {
	n := NewNode()
	pods, lists := make([]*Pod, workers), make([]List, workers)
	for i := range pods {
		name := fmt.Sprintf("d%d", i)
		IP(n.Host, "link add %s type veth peer name %sp", name, name)
		IP(n.Host, "link set %s up alias %s", name, name)
		pods[i] = NewPod("c" + name)
		lists[i] = List{{Plugin: "host-device", Keys: Object{"device": name, "ipam": HostLocal("10.88.0.0/24")}}}
	}
	before := n.Snapshot("links")
	together := func(do func(p *Pod, list List)) {
		GinkgoHelper()
		nstest.AtOnce(len(pods), func(i int) { do(pods[i], lists[i]) })
	}
	together(func(p *Pod, list List) { n.Up(p, list) })
	for i, p := range pods {
		Expect(Show(p.Host, "eth0").Ifalias).To(Equal(fmt.Sprintf("d%d", i)))
	}
	together(func(p *Pod, list List) { n.Must("DEL", p, list) })
	Expect(n.Snapshot("links")).To(Equal(before))
})

var _ = DescribeTable("64 containers in parallel get an interface each:", Label("kernel", "slow"), func(
	kind string, step Step,
) {
	nstest.Need(kind)
	n := NewNode()
	Uplink(n.Host)
	before := n.Snapshot("links")
	list := List{step}.With(step.Plugin, Object{"ipam": HostLocal("10.88.0.0/24")})
	pods := make([]*Pod, workers)
	for i := range pods {
		pods[i] = NewPod(fmt.Sprintf("c%d", i))
	}
	nstest.AtOnce(workers, func(i int) { n.Up(pods[i], list) })
	macs := map[string]bool{}
	for _, p := range pods {
		macs[Show(p.Host, "eth0").Address] = true
	}
	Expect(macs).To(HaveLen(workers))
	nstest.AtOnce(workers, func(i int) { n.Must("DEL", pods[i], list) })
	for _, p := range pods {
		Expect(Names(p.Host, "")).To(BeEmpty())
	}
	Expect(n.Files("/run/hawser/links")).NotTo(ContainSubstring(".json"))
	Expect(n.Snapshot("links")).To(Equal(before))
},
	Entry("macvlan on one master", "macvlan", Step{Plugin: "macvlan", Keys: Object{"master": "up0"}}),
	Entry("netkit", Label("netkit"), "netkit",
		Step{Plugin: "ptp", Keys: Object{"deviceType": "netkit", "ipMasq": true}}),
)

// mixed is a node on which Hawser's or the reference's plugin serves each call, and each call of a delegate.
type mixed struct {
	*World
	ref       nstest.Reference
	r         *rand.Rand
	counts    map[string]int
	originals map[string]Link // of the containers by namespace, before tuning
}

var _ = Describe("a node that is upgraded and downgraded", Label("kernel", "upgrades", "slow"), func() {
	DescribeTable("between all calls serves ADD, CHECK and DEL", func(ref nstest.Reference) {
		const pods = 8
		steps := 80
		if os.Getenv("HAWSER_LOAD") != "" {
			steps = 500
		}
		nstest.Need("iptables")
		m := &mixed{World: NewNode(), ref: ref, r: rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0)),
			counts: map[string]int{}, originals: map[string]Link{}}
		m.Version, m.Other = "1.0.0", m.serve
		all := make([]*Pod, pods)
		for i := range all {
			all[i] = NewPod(fmt.Sprintf("c%d", i))
		}
		for range steps {
			i := m.r.IntN(pods)
			p, list := all[i], m.list(i)
			switch {
			case p.Result == nil:
				m.Must("ADD", p, list)
				for _, other := range all {
					Expect(other == p || other.Result == nil || other.Addr() != p.Addr()).To(BeTrue(),
						"%s and %s have %s", p.ID, other.ID, p.Addr())
				}
			case m.r.IntN(2) == 0:
				m.Must("CHECK", p, list)
			default:
				m.Must("DEL", p, list)
				p.Result = nil
			}
		}
		for i, p := range all {
			m.Must("DEL", p, m.list(i))
		}
		AddReportEntry("mixed", fmt.Sprintf("seed %d: %v", GinkgoRandomSeed(), m.counts))
		records := MatchRegexp(`^/run/hawser/.*\.json$`)
		Expect(Leftovers(m.Host)).NotTo(ContainElement(Not(records)))
		// The reference's DEL does not remove Hawser's records, but Hawser's GC does. route_localnet stays as the
		// reference has set it, without an element of Hawser.
		m.Other = nil
		m.Must("GC", &Pod{Network: "net"}, m.list(0).Valid())
		Expect(m.Snapshot("nftables")).NotTo(ContainSubstring("route_localnet was"))
	},
		Entry("with Debian's reference", nstest.Debian()),
		Entry("with the newest reference", nstest.Newest()),
	)
})

// list returns a list for the container of a number that the reference also supports: release 1.1.1 has no nftables,
// and no IFNAME in CHECK. The newest release's tuning does not change the MTU in the result of Hawser's bridge, whose
// CHECK would then find another MTU.
func (m *mixed) list(i int) List {
	keys := Object{"sysctl": Object{"net.ipv4.conf.eth0.arp_filter": "1"}, "mac": fmt.Sprintf("0a:00:00:00:00:%02x", i)}
	if m.ref == nstest.Debian() {
		keys["mtu"] = 1400
	}
	return Usual("iptables").Port(8000+i).With("tuning", keys)
}

func (m *mixed) serve(plugin string, c Call) Answer {
	side, by := "ours", m.World
	// CHECK of the reference's portmap 1.1.1 finds no host port, not even its own.
	if blind := plugin == "portmap" && c.Command == "CHECK"; m.r.IntN(2) == 0 && !blind {
		side, by = "the reference", m.With(m.ref)
	}
	m.counts[side+" "+c.Command]++
	c.Path = []string{m.Dir, m.ref.Dir()}[m.r.IntN(2)] // of the IPAM plugin
	cont := &nstest.Host{Name: c.ID, Path: c.Netns}
	if plugin == "tuning" && c.Command == "ADD" {
		m.originals[c.Netns] = Show(cont, "eth0")
	}
	a := by.Try(plugin, c)
	Expect(a.Code).To(BeZero(), "%s %s by %s: %s%s", plugin, c.Command, side, a.Stdout, a.Stderr)
	if was, tuned := m.originals[c.Netns]; tuned && plugin == "tuning" && c.Command == "DEL" {
		now := Show(cont, "eth0")
		Expect([]any{now.MTU, now.Address}).To(Equal([]any{was.MTU, was.Address}), "after the DEL of %s", side)
		delete(m.originals, c.Netns)
	}
	return a
}
