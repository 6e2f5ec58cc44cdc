package kube_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// member is a machine of a control plane: a member of etcd, an API server that knows this one alone, and a node.
type member struct {
	*nstest.Host
	name, address string
	dir, peers    string
	etcd          *exec.Cmd
}

// The same in each: they have a loopback interface of their own.
const (
	memberURL  = "https://" + loopback + "6443"
	memberEtcd = "http://" + loopback + "2379"
)

// newMembers starts three, each in namespaces of its own, on one bridge.
func newMembers() (all []*member) {
	GinkgoHelper()
	wire := nstest.NewNetns()
	wire.IP("link add br0 type bridge", "link set br0 up")
	var peers []string
	for i := range 3 {
		m := &member{Host: nstest.NewHost(), name: fmt.Sprint("node-", i), address: fmt.Sprint("10.99.0.", i+1),
			dir: GinkgoT().TempDir()}
		nstest.Wire(nstest.End{Host: m.Host, Name: "eth0", Addrs: []string{m.address + "/24"}},
			nstest.End{Host: wire, Name: fmt.Sprint("p", i)})
		wire.IP(fmt.Sprintf("link set p%d master br0", i))
		peers = append(peers, fmt.Sprintf("%s=http://%s:2380", m.name, m.address))
		all = append(all, m)
	}
	for _, m := range all {
		m.peers = strings.Join(peers, ",")
		m.startEtcd()
	}
	for i, m := range all {
		m.Start(nstest.Program{Path: os.Getenv("HAWSER_APISERVER"), Args: []string{"-etcd", memberEtcd,
			"-port", "6443", "-certs", m.dir + "/certs"}})
		Eventually(func() string { return m.ask("/readyz") }).
			WithTimeout(nstest.Patience(2 * time.Minute)).WithPolling(time.Second).Should(Equal("ok"))
		if i == 0 {
			m.Cmd("curl", "-skf", "-H", "Authorization: Bearer admin", "-H", "Content-Type: application/yaml",
				"--data-binary", "@../../deploy/cluster-local/crd.yaml",
				memberURL+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
		}
		Eventually(func() string { return m.ask(addresses) }).
			WithTimeout(nstest.Patience(time.Minute)).WithPolling(time.Second).Should(ContainSubstring("AddressList"))
		m.Do(m.configure)
	}
	return all
}

func (m *member) startEtcd() {
	GinkgoHelper()
	peer := "http://" + m.address + ":2380"
	m.etcd = m.Start(nstest.Program{Path: os.Getenv("HAWSER_ETCD"), Args: []string{"--name", m.name,
		"--data-dir", m.dir + "/etcd", "--initial-cluster", m.peers, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--listen-client-urls", memberEtcd,
		"--advertise-client-urls", memberEtcd, "--logger", "zap", "--log-level", "error"}})
}

// ask is what the member's API server answers; empty when it does not.
func (m *member) ask(path string) string {
	GinkgoHelper()
	return m.Run(nstest.Program{Path: "curl", Args: []string{"-skf", "--max-time", "5", "-H",
		"Authorization: Bearer admin", memberURL + path}}).Stdout
}

// configure writes what a node has: a kubeconfig, and that the cluster knows it.
func (m *member) configure() {
	GinkgoHelper()
	dir := "/var/lib/cni/cluster-local/default"
	for _, d := range []string{dir, kubelets} {
		Expect(os.MkdirAll(d, 0o755)).To(Succeed())
	}
	Expect(os.WriteFile(filepath.Join(dir, cni.Digest(m.name, 16)+".known"), []byte(nstest.Must(sysctl.BootID())),
		0o600)).To(Succeed())
	Expect(os.WriteFile(kubelets+"/kubeconfig", fmt.Appendf(nil, `
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: node-%s}}]
`, memberURL, m.name), 0o600)).To(Succeed())
}

// call runs the plugin on the member's node, and kills it when it takes longer than a runtime would wait.
func (m *member) call(command, id string) (a answer, ok bool) {
	GinkgoHelper()
	conf := nstest.Must(json.Marshal(object{"cniVersion": "1.1.0", "name": "lan", "type": "macvlan", "ipam": object{
		"type": "cluster-local", "node": m.name, "kubeconfig": kubelets + "/kubeconfig",
		"ranges": json.RawMessage(`[[{"subnet": "10.30.0.0/24"}]]`)}}))
	out := m.Run(nstest.Program{Path: "timeout", Args: []string{"-s", "KILL", "8", nstest.Build("cluster-local")},
		Env: []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=/x",
			"CNI_PATH=/x"}, Stdin: string(conf)})
	_ = json.Unmarshal([]byte(out.Stdout), &a)
	return a, out.Exit == 0
}

// isLeader says whether the member leads etcd.
func (m *member) isLeader() bool {
	GinkgoHelper()
	text := m.Run(nstest.Program{Path: "curl", Args: []string{"-s", "--max-time", "2",
		memberEtcd + "/metrics"}}).Stdout
	return strings.Contains(text, "\netcd_server_is_leader 1\n")
}

// load is what goes on while members fail: containers that come and go on all nodes.
type load struct {
	sync.Mutex
	owner            map[string]string // of an address, from its ADD to its DEL
	twice            []string
	added, failed    atomic.Int64
	stop             atomic.Bool
	group            sync.WaitGroup
	longest          atomic.Int64 // from one ADD that succeeded to the next, on any node
	last             atomic.Int64
	unfinishedDelete atomic.Int64
}

// worker attaches one container after the other on a node, and detaches each when the next one is there.
func (l *load) worker(m *member, name string) {
	defer GinkgoRecover()
	before := ""
	for n := 0; !l.stop.Load(); n++ {
		id := fmt.Sprint(name, "-", n)
		if a, ok := m.call("ADD", id); ok {
			l.hold(a.IPs[0].Address, id)
		} else {
			l.failed.Add(1)
		}
		l.detach(m, before)
		before = id
	}
	l.detach(m, before)
}

// hold writes down that a container has an address.
func (l *load) hold(address, id string) {
	now := time.Now().UnixNano()
	if before := l.last.Swap(now); before != 0 {
		l.longest.Store(max(l.longest.Load(), now-before))
	}
	l.added.Add(1)
	l.Lock()
	defer l.Unlock()
	if other := l.owner[address]; other != "" {
		l.twice = append(l.twice, fmt.Sprint(address, " of ", other, " and ", id))
	}
	l.owner[address] = id
}

// detach ends a container, however long that takes.
func (l *load) detach(m *member, id string) {
	if id == "" {
		return
	}
	l.Lock()
	maps.DeleteFunc(l.owner, func(_, owner string) bool { return owner == id })
	l.Unlock()
	end := time.Now().Add(nstest.Patience(3 * time.Minute))
	for _, done := m.call("DEL", id); !done; _, done = m.call("DEL", id) {
		if time.Now().After(end) {
			l.unfinishedDelete.Add(1)
			return
		}
	}
}

var _ = Describe("three members of etcd, of which the leader", Label("cluster-members"), func() {
	DescribeTable("fails three times", func(fail, mend func(m *member)) {
		for _, name := range []string{"HAWSER_APISERVER", "HAWSER_ETCD"} {
			if os.Getenv(name) == "" {
				Skip(name + " is not set: make test-cluster sets it")
			}
		}
		all := newMembers()
		l := &load{owner: map[string]string{}}
		for i := range 12 {
			l.group.Go(func() { l.worker(all[i%3], fmt.Sprint("w", i)) })
		}
		DeferCleanup(func() { l.stop.Store(true); l.group.Wait() })
		for range 3 {
			before := l.added.Load()
			Eventually(l.added.Load).WithTimeout(nstest.Patience(2*time.Minute)).
				Should(BeNumerically(">", before+20), "ADDs go on")
			var leader *member
			Eventually(func() *member {
				for _, m := range all {
					if m.isLeader() {
						leader = m
					}
				}
				return leader
			}).WithTimeout(nstest.Patience(time.Minute)).ShouldNot(BeNil())
			fail(leader)
			before = l.added.Load()
			Eventually(l.added.Load).WithTimeout(nstest.Patience(2*time.Minute)).
				Should(BeNumerically(">", before+20), "the majority goes on")
			mend(leader)
		}
		l.stop.Store(true)
		l.group.Wait()
		Expect(l.twice).To(BeEmpty())
		Expect(l.unfinishedDelete.Load()).To(BeZero())
		AddReportEntry("ADDs, ADDs that failed, longest stand-still", fmt.Sprint(l.added.Load(), ", ", l.failed.Load(),
			", ", time.Duration(l.longest.Load()).Round(time.Millisecond)))
		Eventually(func() string { // without requests that were carried out after DEL
			for _, m := range all {
				m.call("DEL", "none")
			}
			return all[0].ask(addresses)
		}).WithTimeout(nstest.Patience(time.Minute)).
			Should(And(ContainSubstring("AddressList"), MatchRegexp(`"items": ?\[\]`)))
	},
		Entry("by kill -9", func(m *member) {
			Expect(m.etcd.Process.Kill()).To(Succeed())
			_ = m.etcd.Wait()
		}, func(m *member) { m.startEtcd() }),
		Entry("cut off from the others", func(m *member) {
			m.Cmd("nft", "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; "+
				"add chain inet cut out { type filter hook output priority 0; }; "+
				"add rule inet cut in iif eth0 drop; add rule inet cut out oif eth0 drop")
		}, func(m *member) { m.Cmd("nft", "delete table inet cut") }),
		Entry("stopped", func(m *member) { Expect(m.etcd.Process.Signal(syscall.SIGSTOP)).To(Succeed()) },
			func(m *member) { Expect(m.etcd.Process.Signal(syscall.SIGCONT)).To(Succeed()) }))
})
