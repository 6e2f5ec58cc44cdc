package load_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

const (
	// fewPods is the number of containers if HAWSER_PODS is not set.
	fewPods = 300
	// manyPods are so many containers that a leak of one kernel object for each is distinguishable from the activity of
	// the rest of the machine.
	manyPods = 10000
	runtimes = 16
)

var _ = It("nothing is left of containers that come and go while plugins are killed and IPAM fails", Label(
	"kernel", "long",
), func() {
	count := fewPods
	if nstest.Quick() {
		count /= 3
	}
	l := newLong(nstest.Must(strconv.Atoi(cmp.Or(os.Getenv("HAWSER_PODS"), fmt.Sprint(count)))))
	rest, start := l.rest(), time.Now()
	l.run(l.pods / 10)
	Eventually(l.rest).Should(Equal(rest)) // the kernel removes links with their namespaces
	before := kernelMemory()
	l.run(l.pods)
	rate := float64(l.pods) / time.Since(start).Seconds()
	Eventually(l.rest).Should(Equal(rest))
	AddReportEntry("long", fmt.Sprintf("seed %d: %d containers, %.1f a second: %v", GinkgoRandomSeed(), l.pods, rate,
		l.counts))
	if l.pods >= manyPods {
		Expect(before.objects).NotTo(BeEmpty())
		Eventually(func() map[string]int { return before.more(kernelMemory(), l.pods*9/20) }).
			WithTimeout(2*time.Minute).WithPolling(time.Second).Should(BeEmpty(), "half an object for each container")
	}
	after := kernelMemory()
	AddReportEntry("long, memory", fmt.Sprintf("KiB of the kernel after a tenth %v, at the end %v; objects more: %v",
		before.kib, after.kib, before.more(after, max(1000, l.pods/20))))
	for _, net := range l.networks {
		clear(net.up)
	}
	l.Do(l.steady.collect)
})

// long is a node on which containers come and go through libcni, on a large network and on one that is sometimes full.
type long struct {
	*load
	pods     int
	networks []*network
	runtimes []*runtime
	steady   *runtime // one without faults
	last     atomic.Int64
	readonly sync.Mutex // held while the lease directory is read-only
}

type network struct {
	*libcni.NetworkConfigList
	up map[string]bool // IDs of the containers that the runtime knows
}

func newLong(pods int) *long {
	GinkgoHelper()
	n := NewNode()
	l := &long{load: &load{World: n, counts: map[string]int{}, owners: map[string]string{}}, pods: pods}
	few := Object{"type": "host-local", "subnet": "10.89.0.0/24", "rangeEnd": "10.89.0.13"}
	limits := Object{"ingressRate": 800000000, "ingressBurst": 8000000, "egressRate": 800000000, "egressBurst": 8000000}
	l.networks = []*network{confList("net", roomy("")), confList("small", append(
		roomy("").With("bridge", Object{"bridge": "cni1", "ipam": few}), Step{Plugin: "bandwidth", Keys: limits}))}
	for name, body := range flaky {
		n.Script(name, `[ "$CNI_COMMAND" = ADD ] || exec "${0%/*}/host-local"`+"\n"+body)
	}
	n.Do(func() { // so that it can be made read-only
		Expect(os.Mkdir(leases, 0o755)).To(Succeed())
		Expect(unix.Mount(leases, leases, "", unix.MS_BIND, "")).To(Succeed())
	})
	l.steady = newRuntime(l, nil)
	for i := range runtimes {
		l.runtimes = append(l.runtimes, newRuntime(l, rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), uint64(i)))))
	}
	for i, net := range l.networks { // which stay
		p := &pod{Pod: NewPod(fmt.Sprint("warm", i))}
		n.Do(func() { Expect(l.steady.add(net, p, runtimeConf(p, 80+i))).To(BeTrue()) })
	}
	return l
}

const (
	leases = "/var/lib/cni/networks"
	cache  = "/var/lib/cni" // of libcni
)

// flaky has IPAM plugins whose ADD fails, with its commands.
var flaky = map[string]string{
	"refuses": Refusal,
	"dies":    "kill -9 $$",
	"babbles": `cat >/dev/null; echo '{"cniVersion": "1.1.0", "ips": ['`,
	"loses":   `"${0%/*}/host-local" >/dev/null; kill -9 $$`,
}

// confList returns the list as a runtime has it on disk, with host ports as a capability.
func confList(name string, list List) *network {
	GinkgoHelper()
	plugins := []Object{}
	for _, e := range list.With("portmap", Object{"runtimeConfig": nil, "capabilities": Object{"portMappings": true}}) {
		plugins = append(plugins, Merge(e.Keys, Object{"type": e.Plugin}))
	}
	text := Text(Object{"cniVersion": "1.1.0", "name": name, "plugins": plugins})
	return &network{NetworkConfigList: nstest.Must(libcni.NetworkConfFromBytes([]byte(text))), up: map[string]bool{}}
}

// rest returns everything that containers could have left.
func (l *long) rest() string {
	GinkgoHelper()
	return l.Snapshot() + strings.Join(Leftovers(l.Host), "\n") + l.Cmd("ls", cache+"/results")
}

// run makes the runtimes attach and detach containers until their number is reached, with a GC after each thousand, or
// four in total.
func (l *long) run(pods int) {
	GinkgoHelper()
	l.work(len(l.runtimes), func(i int) {
		l.Do(func() {
			for n := l.last.Add(1); n <= int64(pods) && !l.failed.Load(); n = l.last.Add(1) {
				l.runtimes[i].pod(int(n))
				if n%int64(min(1000, max(1, l.pods/4))) == 0 {
					l.runtimes[i].collect()
				}
			}
		})
	})
	l.last.Store(int64(pods))
	l.Do(l.steady.collect)
}

// runtime calls the plugins through libcni, with faults in some of the calls.
type runtime struct {
	*long
	invoke.DefaultExec
	cni    *libcni.CNIConfig
	r      *rand.Rand               // nil: no faults
	faults int                      // in the call
	times  map[string]time.Duration // that calls took
}

func newRuntime(l *long, r *rand.Rand) *runtime {
	t := &runtime{long: l, r: r, times: map[string]time.Duration{}}
	t.RawExec = &invoke.RawExec{Stderr: t}
	t.cni = libcni.NewCNIConfigWithCacheDir([]string{l.Dir}, cache, t)
	return t
}

// Write receives the stderr of plugins.
func (t *runtime) Write(stderr []byte) (int, error) {
	for range bytes.Count(stderr, []byte("reclaimed ")) {
		t.count("stale leases reclaimed")
	}
	return len(stderr), nil
}

// ExecPlugin runs a plugin. Some plugins are killed at a random time within the duration of the last such call, and
// some get an IPAM plugin that fails.
func (t *runtime) ExecPlugin(ctx context.Context, path string, conf []byte, env []string) ([]byte, error) {
	if t.r == nil {
		return t.DefaultExec.ExecPlugin(ctx, path, conf, env)
	}
	const prefix = "CNI_COMMAND="
	command := env[slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, prefix) })][len(prefix):]
	ipam := []byte(`"type":"host-local"`)
	if command == "ADD" && bytes.Contains(conf, ipam) && t.r.IntN(30) == 0 {
		name := slices.Sorted(maps.Keys(flaky))[t.r.IntN(len(flaky))]
		conf = bytes.Replace(conf, ipam, []byte(`"type":"`+name+`"`), 1)
		t.fault("IPAM " + name)
	}
	call := filepath.Base(path) + " " + command
	if took := t.times[call]; took != 0 && t.r.IntN(40) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(t.r.Int64N(int64(took)))) // ends in SIGKILL
		defer cancel()
	}
	start := time.Now()
	out, err := t.DefaultExec.ExecPlugin(ctx, path, conf, env)
	if err != nil && ctx.Err() != nil {
		t.fault("killed " + command)
	}
	t.times[call] = time.Since(start)
	return out, err
}

func (t *runtime) fault(what string) {
	t.faults++
	t.count(what)
}

// try runs a call of libcni, which may fail only for a known reason.
func (t *runtime) try(net *network, what string, call func() error) (ok bool) {
	GinkgoHelper()
	t.faults = 0
	err := call()
	switch {
	case err == nil:
		t.count(what)
	case t.faults != 0:
	case strings.Contains(err.Error(), "read-only file system"):
		t.count(what + " meets read-only leases")
	case what == "ADD" && net.Name == "small" && strings.Contains(err.Error(), "no IP addresses available"):
		t.count("ADD finds no address")
	default:
		Expect(err).NotTo(HaveOccurred(), "%s without a fault", what)
	}
	return err == nil
}

// pod plays the life of a container, from its namespace to its last DEL or until the runtime forgets it.
func (t *runtime) pod(n int) {
	GinkgoHelper()
	net := t.networks[t.r.IntN(4)/3]
	p := &pod{Pod: &Pod{Call: Call{ID: fmt.Sprint("c", n), IfName: "eth0", Netns: newNetns(n)}}}
	defer unpin(p.Netns)
	rt := runtimeConf(p, 1024+n%60000)
	if t.add(net, p, rt) && t.r.IntN(10) == 0 {
		t.check(net, rt)
	}
	end := t.r.IntN(100)
	if end < 25 { // the sandbox ends first
		unpin(p.Netns)
	}
	t.end(net, p)
	switch {
	case end < 2: // libcni also loses its cache
		t.count("forgotten, and by libcni")
		Expect(os.RemoveAll(filepath.Join(cache, "results", net.Name+"-"+p.ID+"-eth0"))).To(Succeed())
	case end < 4:
		t.count("forgotten")
	default:
		t.del(net, rt)
	}
}

func runtimeConf(p *pod, port int) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.ID, IfName: p.IfName, NetNS: p.Netns, CapabilityArgs: map[string]any{
		"portMappings": []Object{{"hostPort": port, "containerPort": 80, "protocol": "tcp"}}}}
}

// add attaches the container. Sometimes leases cannot be written during the call.
func (t *runtime) add(net *network, p *pod, rt *libcni.RuntimeConf) (ok bool) {
	GinkgoHelper()
	t.calls.RLock()
	defer t.calls.RUnlock()
	if t.r != nil && t.r.IntN(200) == 0 && t.readonly.TryLock() {
		defer t.readonly.Unlock()
		if remount(unix.MS_RDONLY) {
			t.count("leases read-only")
			defer func() { Expect(remount(0)).To(BeTrue()) }()
		}
	}
	return t.try(net, "ADD", func() error {
		res, err := t.cni.AddNetworkList(context.Background(), net.NetworkConfigList, rt)
		if err != nil {
			return err
		}
		p.Result = []byte(Text(res))
		t.own(p)
		t.mu.Lock()
		defer t.mu.Unlock()
		net.up[p.ID] = true
		return nil
	})
}

func (t *runtime) check(net *network, rt *libcni.RuntimeConf) {
	GinkgoHelper()
	t.calls.RLock()
	defer t.calls.RUnlock()
	t.try(net, "CHECK", func() error {
		return t.cni.CheckNetworkList(context.Background(), net.NetworkConfigList, rt)
	})
}

// end makes the container invalid for GC, and its addresses available to other containers.
func (t *runtime) end(net *network, p *pod) {
	t.release(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(net.up, p.ID)
}

// del repeats DEL until it succeeds.
func (t *runtime) del(net *network, rt *libcni.RuntimeConf) {
	GinkgoHelper()
	del := func() error { return t.cni.DelNetworkList(context.Background(), net.NetworkConfigList, rt) }
	for ok := false; !ok; {
		t.calls.RLock()
		ok = t.try(net, "DEL", del)
		t.calls.RUnlock()
	}
}

// collect runs a GC for each network.
func (t *runtime) collect() {
	GinkgoHelper()
	t.calls.Lock()
	defer t.calls.Unlock()
	for _, net := range t.networks {
		args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
		for id := range net.up {
			args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: "eth0"})
		}
		gc := func() error { return t.cni.GCNetworkList(context.Background(), net.NetworkConfigList, args) }
		for !t.try(net, "GC", gc) {
		}
	}
}

// remount makes the lease directory read-only or writable. It returns false if a file is open for writing.
func remount(flags uintptr) bool {
	GinkgoHelper()
	err := unix.Mount("", leases, "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
	if err != unix.EBUSY {
		Expect(err).NotTo(HaveOccurred())
	}
	return err == nil
}

// newNetns creates a network namespace from a thread of the node, which returns to the node. Namespaces of nstest would
// all exist until the end of the spec.
func newNetns(i int) string {
	GinkgoHelper()
	node := nstest.Must(os.Open("/proc/thread-self/ns/net"))
	defer func() { _ = node.Close() }()
	path := fmt.Sprint("/run/netns/long", i)
	Expect(os.WriteFile(path, nil, 0o444)).To(Succeed())
	Expect(unix.Unshare(unix.CLONE_NEWNET)).To(Succeed())
	Expect(unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")).To(Succeed())
	Expect(os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)).To(Succeed())
	Expect(unix.Setns(int(node.Fd()), unix.CLONE_NEWNET)).To(Succeed())
	return path
}

func unpin(path string) {
	GinkgoHelper()
	if err := unix.Unmount(path, unix.MNT_DETACH); err != unix.EINVAL && err != unix.ENOENT {
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(os.RemoveAll(path)).To(Succeed())
}

// memory is the kernel's memory: KiB in total, and objects of each kind that it cannot reclaim at any time.
type memory struct {
	kib, objects map[string]int
	slabs        int // of any kind
}

func kernelMemory() memory {
	GinkgoHelper()
	m := memory{kib: map[string]int{}, objects: map[string]int{}}
	for line := range strings.Lines(string(nstest.Must(os.ReadFile("/proc/meminfo")))) {
		if f := strings.Fields(line); f[0] == "SUnreclaim:" || f[0] == "Percpu:" {
			m.kib[f[0]] = nstest.Must(strconv.Atoi(f[1]))
		}
	}
	slabs, _ := os.ReadFile("/proc/slabinfo") // which only root may read
	for line := range strings.Lines(string(slabs)) {
		f := strings.Fields(line)
		if len(f) != 16 { // the headings
			continue
		}
		m.slabs += nstest.Must(strconv.Atoi(f[14]))
		back, err := os.ReadFile(filepath.Join("/sys/kernel/slab", f[0], "reclaim_account"))
		if err == nil && string(back) == "0\n" && f[0] != "lsm_inode_cache" { // released with the inodes
			m.objects[f[0]] = nstest.Must(strconv.Atoi(f[1]))
		}
	}
	return m
}

// more returns the kinds of objects whose number has grown by at least by. One object for each additional slab does not
// count, because slabs, most of them of the page cache, have lists of their objects' owners.
func (m memory) more(now memory, by int) map[string]int {
	out := map[string]int{}
	by += max(0, now.slabs-m.slabs)
	for name, n := range now.objects {
		if n >= m.objects[name]+by {
			out[name] = n - m.objects[name]
		}
	}
	return out
}
