package kube_test

import (
	"context"
	"crypto"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/plugins/ipam/cluster-local/kube"
)

// sample is what one call took.
type sample struct {
	wall, cpu time.Duration
}

// timed runs a command that must succeed.
func (n node) timed(command, id string) sample {
	GinkgoHelper()
	began := time.Now()
	cmd, wait := n.start(command, id, nil)
	a := wait()
	s := sample{wall: time.Since(began)}
	Expect(cmd.ProcessState.Success()).To(BeTrue(), a.Text)
	s.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return s
}

// middle is the value that half of the samples are below, or another part of them.
func middle(all []sample, part float64, of func(sample) time.Duration) string {
	values := []time.Duration{}
	for _, s := range all {
		values = append(values, of(s))
	}
	slices.Sort(values)
	return fmt.Sprintf("%.1f ms", float64(values[int(float64(len(values)-1)*part)].Microseconds())/1000)
}

func wall(s sample) time.Duration { return s.wall }
func cpu(s sample) time.Duration  { return s.cpu }

// servers is what etcd and the API server have used of the processors so far.
func (c *cluster) servers() (used time.Duration) {
	GinkgoHelper()
	for _, p := range []*os.Process{c.etcd.Process, c.server.Process} {
		text := string(nstest.Must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))))
		fields := strings.Fields(text[strings.LastIndex(text, ")"):])
		for _, ticks := range fields[12:14] {
			used += time.Duration(nstest.Must(strconv.Atoi(ticks))) * 10 * time.Millisecond
		}
	}
	return used
}

// lease is one of a space, with a number.
func lease(i int, node string) (name string, o object) {
	name = fmt.Sprintf("default.10.%d.%d.%d", 64+i>>16, i>>8&255, i&255)
	return name, object{"apiVersion": "ipam.hawser.dev/v1", "kind": "Address", "metadata": object{"name": name},
		"spec": object{"space": "default", "node": node, "network": "held", "container": fmt.Sprint(i),
			"ifname": "eth0", "nonce": "n"}}
}

// hold makes leases of a space, of another network and node.
func (c *cluster) hold(from, to int) {
	GinkgoHelper()
	nstest.AtOnce(8, func(worker int) {
		for i := from + worker; i < to; i += 8 {
			_, o := lease(i, "held")
			Expect(c.ask("POST", addresses, o)).Error().NotTo(HaveOccurred())
		}
	})
}

// request makes or deletes the node's lease, by a connection of its own, and again while the server is busy.
func (n node) request(method string, i int) {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(2*time.Minute))
	defer cancel()
	client := nstest.Must(kube.Open(ctx, n.kubeconfig))
	name, o := lease(i, n.name)
	r := kube.Request{Method: method, Path: addresses, Body: o}
	if method == "DELETE" {
		r = kube.Request{Method: method, Path: addresses + "/" + name}
	}
	_, err := client.Do(ctx, r)
	Expect(err).NotTo(HaveOccurred())
}

var _ = Describe("what cluster-local costs", Ordered, Label("cluster-bench"), func() {
	row := func(what, value string) { AddReportEntry(what, value) }
	wide := object{"ranges": json.RawMessage(`[[{"subnet": "10.30.0.0/16"}]]`)}

	BeforeAll(start)

	alone := func(n node, name string) {
		GinkgoHelper()
		var adds, dels []sample
		before := there.servers()
		const calls = 40
		for i := range calls {
			adds = append(adds, n.timed("ADD", fmt.Sprint("c", i)))
		}
		used := there.servers() - before
		for i := range calls {
			dels = append(dels, n.timed("DEL", fmt.Sprint("c", i)))
		}
		row("ADD "+name+", p50", middle(adds, 0.5, wall))
		row("ADD "+name+", CPU of the program and of the servers", middle(adds, 0.5, cpu)+", "+
			fmt.Sprintf("%.1f ms", float64(used.Milliseconds())/calls))
		row("DEL "+name+", p50", middle(dels, 0.5, wall))
		row("DEL "+name+", CPU of the program", middle(dels, 0.5, cpu))
	}

	It("alone, and with leases held", func() {
		n := newNode("node-a", wide)
		info := nstest.Must(os.Stat(nstest.Build("cluster-local")))
		row("program", fmt.Sprintf("%.1f MB", float64(info.Size())/1e6))
		for _, plugin := range []string{"cluster-local", "host-local"} {
			var starts []sample
			for range 40 {
				began := time.Now()
				cmd := exec.Command(nstest.Build(plugin), "--version")
				Expect(cmd.Run()).To(Succeed())
				starts = append(starts, sample{wall: time.Since(began),
					cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()})
			}
			row("start of "+plugin+", p50 (CPU)", middle(starts, 0.5, wall)+" ("+middle(starts, 0.5, cpu)+")")
		}
		alone(n, "with none held")
		held := 0
		for _, count := range []int{1000, 10000} {
			there.hold(held, count)
			held = count
			alone(n, fmt.Sprint("with ", count, " held"))
		}
	})

	DescribeTable("by a kubelet's certificate", func(kind string, newKey func() (crypto.Signer, error)) {
		n := newNode("node-a", wide)
		n.writeKubeconfig(there.kubelets.certify(n.name, nstest.Must(newKey())))
		alone(n, "by a certificate, "+kind)
	}, Entry("ECDSA", "ECDSA", ecdsaKey), Entry("RSA", "RSA", rsaKey))

	It("a hundred at once", func() {
		nodes := [2]node{newNode("node-a", wide), newNode("node-b", wide)}
		for _, command := range []string{"ADD", "DEL"} {
			began := time.Now()
			for _, a := range all(nodes, command, 100) {
				Expect(a.Code).To(BeZero(), a.Text)
			}
			row("100 "+command+"s at once", fmt.Sprintf("%.0f a second", 100/time.Since(began).Seconds()))
		}
	})

	// A machine hardly starts as many processes as a cluster has nodes: here are the requests alone that ADD and DEL
	// make. The spec after this one starts them, fifty at a time.
	It("of a thousand nodes at once", func() {
		nodes := make([]node, 1000)
		for i := range nodes {
			nodes[i] = newNode(fmt.Sprint("node-", i), wide)
		}
		held := len(there.leases()) // of the specs before
		for _, method := range []string{"POST", "DELETE"} {
			began := time.Now()
			nstest.AtOnce(len(nodes), func(i int) { nodes[i].request(method, held+i) })
			row("1,000 nodes, one "+method+" each", time.Since(began).Round(100*time.Millisecond).String())
			Expect(there.leases()).To(HaveLen(held + map[string]int{"POST": len(nodes)}[method]))
		}
	})

	It("of a thousand nodes, fifty at once", func() {
		nodes := make([]node, 1000)
		for i := range nodes {
			nodes[i] = newNode(fmt.Sprint("node-", i), wide)
		}
		var mu sync.Mutex
		seen, refused := map[string]bool{}, []string{}
		began := time.Now()
		nstest.AtOnce(50, func(worker int) {
			for i := worker; i < len(nodes); i += 50 {
				a := nodes[i].call("ADD", nodes[i].name, nil)
				mu.Lock()
				for _, ip := range a.IPs {
					seen[ip.Address] = true
				}
				if a.Code != 0 || len(a.IPs) == 0 {
					refused = append(refused, a.Text)
				}
				mu.Unlock()
			}
		})
		row("1,000 nodes, 50 at once", time.Since(began).Round(100*time.Millisecond).String())
		Expect(refused).To(BeEmpty())
		Expect(seen).To(HaveLen(1000))
		nstest.AtOnce(50, func(worker int) {
			for i := worker; i < len(nodes); i += 50 {
				nodes[i].succeeds("DEL", nodes[i].name, nil)
			}
		})
		Expect(there.leases()).NotTo(ContainElement(HavePrefix("default.10.30.")))
	})
})
