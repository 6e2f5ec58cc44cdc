// The spec of this directory is what a node does between two losses of its power: it looks at the files that the last
// one left, brings its pods up again, and goes on until the next. scripts/vm/power.sh boots the node and kills it.
//
//	HAWSER_POWER        directory that outlives the node, with what plugins keep below /var/lib/cni
//	HAWSER_POWER_PODS   how many pods the node has (8)
//	HAWSER_POWER_CHURN  how long pods come and go until all are detached for good (1s)
package power_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestPower(t *testing.T) { nstest.RunSpecs(t, "a node that loses its power") }

const (
	workers = 8 // so many calls at once, each worker's for pods of its own
	kept    = "/var/lib/cni"
)

var _ = It("the same pods come up, each with an address, and no two with one", Label("power-loss"), func() {
	disk := cmp.Or(os.Getenv("HAWSER_POWER"), GinkgoT().TempDir())
	count := nstest.Must(strconv.Atoi(cmp.Or(os.Getenv("HAWSER_POWER_PODS"), "8")))
	churn := nstest.Must(time.ParseDuration(cmp.Or(os.Getenv("HAWSER_POWER_CHURN"), "1s")))
	n := &node{World: NewNode(), disk: disk, owners: map[string]string{}}
	n.Cmd("mount", "--bind", disk, kept)
	fmt.Println("== found", n.look(false))
	for i := range count {
		n.pods = append(n.pods, newPod(i, count))
	}
	n.work(func(r *rand.Rand, p *pod) {
		if r.IntN(2) == 0 { // as containerd does with those of before; podman does not
			gone := *p.Pod
			gone.Netns = ""
			n.Must("DEL", &gone, p.list)
		}
		n.bring(p)
	})
	for _, p := range []*pod{n.pods[0], n.pods[count-1]} {
		n.Must("GC", p.Pod, p.list.Valid(n.of(p.Network)...))
	}
	fmt.Println("== all are up:", n.look(true))
	for end := time.Now().Add(churn); time.Now().Before(end); {
		n.work(func(r *rand.Rand, p *pod) {
			if r.IntN(4) == 0 && time.Now().Before(end) {
				n.take(p)
				n.bring(p)
			}
		})
	}
	n.work(func(_ *rand.Rand, p *pod) { n.take(p) })
	Expect(n.look(true)).To(Equal("0 leases, 0 backups"))
	Expect(Leftovers(n.Host)).To(BeEmpty())
})

// node is the host. Its disk is what it was before the boot.
type node struct {
	*World
	disk  string
	pods  []*pod
	turns uint64

	mu     sync.Mutex
	owners map[string]string // of the addresses
}

type pod struct {
	*Pod
	list  List
	asked string // the address that it asks for; empty = any
}

// newPod makes pod i of count. Each fourth asks for its address, in a network of its own: nobody else can be given it.
// The ranges have just room for all.
func newPod(i, count int) *pod {
	GinkgoHelper()
	p := &pod{Pod: NewPod(fmt.Sprintf("pod%d", i))}
	asking := count / 4
	third, size := 0, count-asking
	if i < asking {
		third, size, p.Network, p.asked = 1, asking, "asked", fmt.Sprintf("10.88.1.%d", i+2)
	}
	subnet := fmt.Sprintf("10.88.%d.", third)
	keys := Object{"bridge": fmt.Sprintf("cni%d", third),
		"ipam": Object{"type": "host-local", "ranges": [][]Object{{{"subnet": subnet + "0/24",
			"rangeStart": subnet + "2", "rangeEnd": fmt.Sprint(subnet, size+1)}}}}}
	if p.asked != "" {
		keys["runtimeConfig"] = Object{"ips": []string{p.asked + "/24"}}
	}
	p.list = Usual("").Only("bridge", "portmap", "tuning").Port(10000+i).With("bridge", keys).
		With("tuning", Object{"dataDir": kept + "/tuning", "mtu": 1400})
	return p
}

// work has all workers do something with each of their pods.
func (n *node) work(do func(r *rand.Rand, p *pod)) {
	GinkgoHelper()
	n.turns++
	nstest.AtOnce(workers, func(w int) {
		r := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), n.turns<<8+uint64(w)))
		for i := w; i < len(n.pods); i += workers {
			do(r, n.pods[i])
		}
	})
}

func (n *node) bring(p *pod) {
	GinkgoHelper()
	p.Result = nil
	n.Up(p.Pod, p.list)
	Expect(p.Addr()).To(Or(Equal(p.asked), Satisfy(func(string) bool { return p.asked == "" })))
	n.mu.Lock()
	defer n.mu.Unlock()
	Expect(n.owners).NotTo(HaveKey(p.Addr()), "the address was given to %s", p.ID)
	n.owners[p.Addr()] = p.ID
}

func (n *node) take(p *pod) {
	GinkgoHelper()
	n.mu.Lock()
	delete(n.owners, p.Addr()) // before somebody else can be given it
	n.mu.Unlock()
	n.Must("DEL", p.Pod, p.list)
}

func (n *node) of(network string) (pods []*Pod) {
	for _, p := range n.pods {
		if p.Network == network {
			pods = append(pods, p.Pod)
		}
	}
	return pods
}

// look reads what plugins keep, and says how many files there are of each kind. No file has anything but what an ADD
// writes. One that was not written to the disk is empty, until all pods are up: then the files are those of the live.
func (n *node) look(up bool) string {
	GinkgoHelper()
	counts, empty := map[string]int{}, 0
	for kind, pattern := range map[string]string{
		"leases": "networks/[an]*/*", "backups": "tuning/*_*",
	} {
		for _, file := range nstest.Must(filepath.Glob(filepath.Join(n.disk, pattern))) {
			name := filepath.Base(file)
			if name == "lock" || strings.Contains(name, "last_reserved_ip.") {
				continue
			}
			text := nstest.Must(os.ReadFile(file))
			if !up && len(bytes.Trim(text, "\x00")) == 0 {
				empty++
				continue
			}
			counts[kind]++
			isWhole := json.Valid(text)
			if kind == "leases" {
				id, ifName, _ := strings.Cut(string(text), "\r\n")
				isWhole = ifName == "eth0" && (n.owners[name] == id || !up && strings.HasPrefix(id, "pod"))
			}
			Expect(isWhole).To(BeTrue(), "%s: %q", file, text)
		}
	}
	all := fmt.Sprintf("%d leases, %d backups", counts["leases"], counts["backups"])
	if !up {
		return fmt.Sprintf("%s, %d empty files", all, empty)
	}
	Expect(all).To(Equal(fmt.Sprintf("%[1]d leases, %[1]d backups", len(n.owners))))
	return all
}
