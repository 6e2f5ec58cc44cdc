package runtimes_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

const (
	// soakPace is the time between two starts of pods.
	soakPace = 2 * time.Second
	// soakPods are the pods that exist at the same time, at most.
	soakPods = 24
	// soakGrowth is how much memory a process may have gained at the end, in KiB. Go's heap doubles between two
	// collections.
	soakGrowth = 10 << 10
)

var _ = Describe("a node on which everything fails now and then", Label("soak"), func() {
	minutes, err := strconv.Atoi(os.Getenv("HAWSER_SOAK"))
	if err != nil { // scripts/soak.sh sets it
		return
	}
	It("keeps a connection, and is at the end as it was", func() {
		s := newSoak(time.Duration(minutes) * time.Minute)
		before, memory := s.settled(), map[string]int{}
		s.during(func() {
			s.faults(func() {
				memory = s.memory()
				s.say("after the first round of faults")
			})
		})
		s.say("at the end")
		left, lost := s.compare(before)
		fmt.Printf("== left: %d\n%s== lost: %d\n%s", len(left), strings.Join(left, ""), len(lost),
			strings.Join(lost, ""))
		Expect(left).To(BeEmpty(), "left")
		Expect(lost).To(BeEmpty(), "lost")
		Expect(s.stream.Err()).NotTo(HaveOccurred(), "the connection")
		Expect(s.counts["unexplained"]).To(BeZero())
		now := s.memory()
		for name, size := range memory {
			Expect(now[name]).To(BeNumerically("<", size+soakGrowth), name)
		}
		s.end(s.live.id)
		pods := func() []string { return Leftovers(s.Host) }
		Eventually(pods).Should(BeEmpty())
	})
})

// soak is a node with containerd, firewalld, hawser watch and the DHCP daemon, on which pods come and go.
type soak struct {
	*daemon
	until     time.Time
	live      sandboxed // stays
	stream    *nstest.Stream
	processes map[string]*exec.Cmd
	started   atomic.Int32

	restartFirewalld func(meanwhile func())

	mu     sync.Mutex
	counts map[string]int
	excuse time.Time // until when steps may fail because of the last fault
}

func newSoak(during time.Duration) *soak {
	GinkgoHelper()
	nstest.Need("tbf", "nft-owner")
	m := newMachine("")
	m.bare() // installed as a release is
	m.Cmd(nstest.Build("hawser"), "install", "--to", m.plugins)
	m.Cmd("sh", "-ec", `mkdir -p /var/lib/cni; mount -t tmpfs -o size=8m tmpfs /var/lib/cni
		ip link add cni1 type bridge; ip addr add 10.89.0.1/24 dev cni1; ip link set cni1 up`)
	restart := runFirewalld(m.Host)
	ServeDHCP(m.Host, "cni1", "10.89.0.10,10.89.0.250", "--dhcp-option=3") // no second default route
	daemon := DHCPDaemon(m.Host, filepath.Dir(nstest.Build("dhcp")))
	c := newContainerd(m, built(), m.soakList())
	lent := `{"cniVersion": "1.0.0", "name": "lent", "plugins": [
		{"type": "bridge", "bridge": "cni1", "ipam": {"type": "dhcp"}}]}`
	Expect(os.WriteFile(filepath.Join(c.netconf, "second.conflist"), []byte(lent), 0o644)).To(Succeed())
	Eventually(c.read).Should(ContainElement(lent))
	t := c.tooled("/run/containerd/containerd.sock", false, c.program.Env...)
	watch := m.Start(nstest.Program{Path: nstest.Build("hawser"), Env: t.env, Args: []string{"watch", "--every", "1m",
		"--yes", "--older", "2m", "--conf", c.netconf, "--path", m.plugins}})
	s := &soak{daemon: c, until: time.Now().Add(during), counts: map[string]int{}, restartFirewalld: restart,
		processes: map[string]*exec.Cmd{"watch": watch, "dhcp daemon": daemon}}
	first, _ := c.start("first", tcp(9999, 80)) // what pods share is there from now on
	c.end(first)
	restart(func() { // and what they share where firewalld does not run
		second, _ := c.start("second", tcp(9999, 80))
		c.end(second)
	})
	s.live.id, s.live.Pod = c.start("live", tcp(8080, 80), tcp(8081, 81))
	s.stream = nstest.OpenStream(s.live.Host, m.outside, "192.0.2.1:8081", 100*time.Millisecond)
	return s
}

// soakList is a network with host ports, firewall, limits and sysctls, for both families.
func (m *machine) soakList() string {
	n := network
	n.IPv6 = true
	limits := `{"type": "bandwidth", "ingressRate": 80000000, "ingressBurst": 8000000`
	if m.Run(nstest.Program{Path: "ip", Args: strings.Fields("link add ifb9 type ifb")}).Exit == 0 {
		m.IP("link del ifb9")
		limits += `, "egressRate": 80000000, "egressBurst": 8000000`
	}
	const tuning = `{"type": "tuning"`
	return strings.Replace(n.Conflist(), tuning, limits+"},\n  "+tuning, 1)
}

// runFirewalld starts firewalld on a host, on a bus of its own, and returns a function that restarts it and does
// something while it does not run. The bridge of the DHCP server is trusted.
func runFirewalld(h *nstest.Host) (restart func(meanwhile func())) {
	GinkgoHelper()
	nstest.NeedProgram("firewalld", "firewall-cmd")
	nstest.StartBus()
	var running *exec.Cmd
	config := GinkgoT().TempDir()
	restart = func(meanwhile func()) {
		GinkgoHelper()
		if running != nil {
			Expect(running.Process.Signal(unix.SIGTERM)).To(Succeed())
			_ = running.Wait()
		}
		meanwhile()
		running = h.Start(nstest.Program{Path: "firewalld", Args: []string{"--nofork", "--nopid", "--log-target",
			"console", "--system-config", config}})
		Eventually(func() int {
			return h.Run(nstest.Program{Path: "firewall-cmd", Args: []string{"--state"}}).Exit
		}).Should(BeZero())
	}
	restart(func() {})
	h.Cmd("firewall-cmd", "--permanent", "--zone=trusted", "--add-interface=cni1")
	h.Cmd("firewall-cmd", "--reload")
	return restart
}

// during runs do while pods come and go, and returns when all pods have ended.
func (s *soak) during(do func()) {
	GinkgoHelper()
	turns, over := time.NewTicker(soakPace), make(chan struct{})
	defer turns.Stop()
	nstest.AtOnce(soakPods+1, func(i int) {
		if i == soakPods {
			defer close(over)
			do()
			return
		}
		r := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), uint64(i)))
		for {
			select {
			case <-over:
				return
			case <-turns.C:
				s.pod(r)
			}
		}
	})
}

// pod is the life of a pod, as a kubelet leads it: one that fails is removed, however often that takes.
func (s *soak) pod(r *rand.Rand) {
	GinkgoHelper()
	n := s.started.Add(1)
	name, port := fmt.Sprint("pod", n), 10000+n%20000
	began := time.Now()
	_, err := s.run(name, tcp(port, 80))
	if err == nil {
		s.count("started")
		err = s.answer(port)
	}
	if s.explained(name, began, err) {
		<-time.After(time.Duration(5+r.IntN(20)) * time.Second)
		began = time.Now()
		s.explained(name+", later", began, s.answer(port))
	}
	for end := time.Now().Add(5 * time.Minute); ; <-time.After(2 * time.Second) {
		if s.removed("uid-" + name) {
			return
		}
		Expect(time.Now()).To(BeTemporally("<", end), "%s cannot be removed", name)
	}
}

// answer asks a pod through its host port for ten seconds: its program may still be starting.
func (s *soak) answer(port int32) (err error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		if _, err = s.outside.AskWithin(3*time.Second, "tcp", fmt.Sprint("192.0.2.1:", port)); err == nil {
			return nil
		}
	}
	return err
}

// explained reports whether a step of a pod succeeded. One that began when no fault had an effect any more and failed
// is counted as unexplained.
func (s *soak) explained(what string, began time.Time, err error) bool {
	if err == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := "failed"
	if began.After(s.excuse) {
		kind = "unexplained"
	}
	s.counts[kind]++
	fmt.Printf("== %s: %s: %.500s\n", kind, what, err)
	return false
}

// removed stops and removes the sandboxes of a pod, and reports whether there are none.
func (s *soak) removed(uid string) bool {
	answer, err := ask(s.ListPodSandbox, &cri.ListPodSandboxRequest{})
	if err != nil {
		return false
	}
	for _, box := range answer.Items {
		if box.Metadata.Uid == uid {
			err = errors.Join(err, s.stop(box.Id), s.remove(box.Id))
		}
	}
	return err == nil
}

func (s *soak) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// faults happen one after the other, in rounds of random order, until the time is over; after is called when the first
// round is.
func (s *soak) faults(after func()) {
	GinkgoHelper()
	r := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), soakPods))
	all := map[string]func(){
		"plugin killed":         func() { s.killPlugin(r) },
		"plugin killed again":   func() { s.killPlugin(r) },
		"plugin killed, thrice": func() { s.killPlugin(r) },
		"containerd killed":     s.killContainerd,
		"rules flushed":         s.flush,
		"rules flushed again":   s.flush,
		"firewalld reloaded":    func() { s.Cmd("firewall-cmd", "--reload") },
		"firewalld restarted":   func() { s.restartFirewalld(func() {}) },
		"disk full": func() {
			s.Cmd("sh", "-c", "! cat /dev/zero >/var/lib/cni/full 2>&1")
			<-time.After(time.Minute)
			s.Cmd("rm", "/var/lib/cni/full")
		},
		"files from 2099": func() { s.touch("2099-01-01") },
		"files from 1970": func() { s.touch("1970-01-01") },
	}
	for {
		names := slices.Sorted(maps.Keys(all))
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			if time.Until(s.until) < 2*time.Minute {
				<-time.After(time.Until(s.until)) // what the last faults did is over by then
				return
			}
			s.excuses(time.Hour)
			all[name]()
			s.excuses(20 * time.Second)
			name, _, _ = strings.Cut(name, ",")
			s.count(strings.TrimSuffix(name, " again"))
			s.answers(name)
			<-time.After(time.Duration(20+r.IntN(20)) * time.Second)
		}
		after()
		after = func() { s.say("") }
	}
}

func (s *soak) excuses(during time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.excuse = time.Now().Add(during)
}

// answers waits until the pod that stays is reached through its host port.
func (s *soak) answers(after string) {
	GinkgoHelper()
	began := time.Now()
	Eventually(func() error {
		_, err := s.outside.AskWithin(time.Second, "tcp", "192.0.2.1:8080")
		return err
	}).Should(Succeed(), after)
	if took := time.Since(began); took > time.Second {
		fmt.Printf("== %s: the live pod's host port answers after %s\n", after, took.Round(time.Millisecond))
	}
}

// flush deletes all rules. Watch restores those of the live pods. Firewalld can neither add a source nor reload without
// its own tables, so it is started again.
func (s *soak) flush() {
	GinkgoHelper()
	s.Cmd("nft", "flush", "ruleset")
	s.answers("flush")
	s.restartFirewalld(func() {})
}

// killPlugin kills the plugin that it sees first, at a random moment of its run.
func (s *soak) killPlugin(r *rand.Rand) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-time.After(2 * time.Millisecond) {
		links, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, link := range links {
			exe, err := os.Readlink(link)
			if err != nil || filepath.Dir(exe) != s.plugins {
				continue
			}
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue
			}
			<-time.After(time.Duration(r.IntN(10000)) * time.Microsecond)
			again, _ := os.Readlink(link)
			err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			_ = unix.Close(fd)
			if err == nil && again == exe {
				s.count("killed: " + filepath.Base(exe))
				return
			}
		}
	}
}

func (s *soak) killContainerd() {
	GinkgoHelper()
	s.crash()
	<-time.After(time.Second)
	s.launch()
	Eventually(func() error { _, _, err := s.condition("RuntimeReady"); return err }).Should(Succeed())
}

// touch changes the times of all files, as if the clock had jumped: a namespace cannot have a clock of its own.
func (s *soak) touch(to string) {
	GinkgoHelper()
	// Files come and go.
	s.Cmd("sh", "-c", "find /run/hawser /run/cni /var/lib/cni -exec touch -c -h -d '"+to+"' {} + 2>/dev/null || true")
}

// memory is the resident memory of the processes that stay, in KiB.
func (s *soak) memory() map[string]int {
	GinkgoHelper()
	all := map[string]int{}
	for name, cmd := range s.processes {
		status := string(nstest.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))))
		all[name] = nstest.Must(strconv.Atoi(regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindStringSubmatch(status)[1]))
	}
	return all
}

// say prints the figures so far.
func (s *soak) say(when string) {
	GinkgoHelper()
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Printf("== %s %s: %d pods, %v; KiB of memory: %v; longest wait on the connection: %s, broken: %t\n",
		time.Now().Format(time.TimeOnly), when, s.started.Load(), s.counts, s.memory(),
		s.stream.Longest().Round(time.Millisecond), s.stream.Err() != nil)
}

// settled is the node as sorted lines: its links, addresses, routes and sysctls, and the rules, elements and files of
// each attachment. Chains and sets without elements are no part, because a flush removes them until a pod needs them.
func (s *soak) settled() []string {
	GinkgoHelper()
	node := s.Snapshot("links", "addresses", "routes", "rules", "sysctls") + s.Files("/var/lib/cni/results")
	return slices.Sorted(slices.Values(append(strings.SplitAfter(node, "\n"), Leftovers(s.Host)...)))
}

// compare returns the lines of the node that are new, and those that no longer exist, once nothing changes any more: gc
// of watch removes within some minutes what no runtime knows.
func (s *soak) compare(before []string) (left, lost []string) {
	GinkgoHelper()
	s.Cmd("firewall-cmd", "--reload")
	for range 30 {
		now := s.settled()
		left, lost = nstest.Missing(now, before), nstest.Missing(before, now)
		if len(left)+len(lost) == 0 {
			break
		}
		<-time.After(10 * time.Second)
	}
	return left, lost
}
