package kube_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

const (
	poolsOf = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools"
	pool24  = poolsOf + "/10.30.0.0-24"
)

// pools has the server know objects as those of whereabouts, and gives it a pool.
func (c *cluster) pools() {
	GinkgoHelper()
	loose := object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	_, err := c.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": "ippools.whereabouts.cni.cncf.io"},
		"spec": object{"group": "whereabouts.cni.cncf.io", "scope": "Namespaced",
			"names": object{"kind": "IPPool", "listKind": "IPPoolList", "plural": "ippools", "singular": "ippool"},
			"versions": []object{{"name": "v1alpha1", "served": true, "storage": true,
				"schema": object{"openAPIV3Schema": loose}}}}})
	Expect(err).NotTo(HaveOccurred())
	Eventually(func() error {
		_, err := c.ask("POST", poolsOf, object{"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
			"metadata": object{"name": "10.30.0.0-24"},
			"spec":     object{"range": "10.30.0.0/24", "allocations": object{}}})
		return err
	}).WithTimeout(nstest.Patience(time.Minute)).Should(Succeed())
}

// allocations are the containers of the pool, by offset.
func (c *cluster) allocations() (all map[string]string, version string) {
	GinkgoHelper()
	pool := nstest.Must(c.ask("GET", pool24, nil))
	all = map[string]string{}
	for offset, e := range pool["spec"].(object)["allocations"].(object) {
		all[offset] = e.(object)["id"].(string)
	}
	return all, pool["metadata"].(object)["resourceVersion"].(string)
}

// lends does as a node that runs whereabouts: the lowest free address, written against the version that was read.
func (c *cluster) lends(container string) (addr string) {
	GinkgoHelper()
	for {
		all, version := c.allocations()
		offset := 1
		for ; all[fmt.Sprint(offset)] != ""; offset++ {
		}
		Expect(offset).To(BeNumerically("<", 255))
		_, err := c.send("PATCH", pool24, "application/json-patch+json", []object{
			{"op": "test", "path": "/metadata/resourceVersion", "value": version},
			{"op": "add", "path": fmt.Sprint("/spec/allocations/", offset),
				"value": object{"id": container, "podref": "default/" + container, "ifname": "eth0"}}})
		if err == nil {
			return fmt.Sprint("10.30.0.", offset)
		}
		Expect(err).To(MatchError(ContainSubstring(fmt.Sprint(http.StatusUnprocessableEntity))))
	}
}

// admin has the node's kubeconfig be that of somebody who may read and change pools, as whereabouts.yaml allows.
func (n node) admin() node {
	GinkgoHelper()
	text := strings.ReplaceAll(string(nstest.Must(os.ReadFile(n.kubeconfig))), "token: node-"+n.name, "token: admin")
	Expect(os.WriteFile(n.kubeconfig, []byte(text), 0o600)).To(Succeed())
	return n
}

var _ = Describe("a cluster that comes from whereabouts", Ordered, Label("cluster-guard-real"), func() {
	BeforeAll(func() {
		start()
		there.pools()
	})

	It("gives no address twice while nodes of both kinds do at once, and all that ours gave is free after DEL", func() {
		ipam := object{"ranges": json.RawMessage(`[[{"subnet": "10.30.0.0/24"}]]`), "guard": "whereabouts"}
		nodes := [2]node{newNode("node-a", ipam).admin(), newNode("node-b", ipam).admin()}
		var group sync.WaitGroup
		theirs := make([]string, 20)
		group.Go(func() {
			defer GinkgoRecover()
			for i := range theirs {
				theirs[i] = there.lends(fmt.Sprint("old", i))
			}
		})
		seen := map[string]bool{}
		for _, a := range all(nodes, "ADD", 20) {
			Expect(a.IPs).To(HaveLen(1), a.Text)
			addr, _, _ := strings.Cut(a.IPs[0].Address, "/")
			seen[addr] = true
		}
		group.Wait()
		for _, addr := range theirs {
			Expect(seen).NotTo(HaveKey(addr))
			seen[addr] = true
		}
		Expect(seen).To(HaveLen(40))
		has, _ := there.allocations()
		Expect(has).To(HaveLen(40))
		for _, a := range all(nodes, "DEL", 20) {
			Expect(a.Text).To(BeEmpty())
		}
		has, _ = there.allocations()
		Expect(has).To(HaveLen(20))
		Expect(there.leases()).To(BeEmpty())
	})

	It("imports what a node's containers have, and the pod's DEL ends it in both", func() {
		addr := there.lends("moved")
		n := newNode("node-c", nil).admin()
		conf := object{"cniVersion": "1.0.0", "name": "lan", "type": "macvlan", "ipam": object{"type": "whereabouts",
			"range": "10.30.0.0/24", "node": n.name, "dataDir": n.dataDir,
			"kubernetes": object{"kubeconfig": n.kubeconfig}}}
		cache := GinkgoT().TempDir()
		Expect(os.Mkdir(filepath.Join(cache, "results"), 0o755)).To(Succeed())
		file := object{"containerId": "moved", "networkName": "lan", "ifName": "eth0",
			"config": nstest.Must(json.Marshal(conf)),
			"result": object{"cniVersion": "1.0.0", "ips": []object{{"address": addr + "/24"}}}}
		Expect(os.WriteFile(filepath.Join(cache, "results", "lan-moved-eth0"), nstest.Must(json.Marshal(file)),
			0o600)).To(Succeed())
		for _, want := range []string{"1 addresses", "0 addresses"} {
			run := exec.Command(nstest.Build("cluster-local"), "import", "--cache", cache, "--yes")
			Expect(string(nstest.Must(run.Output()))).To(ContainSubstring(want))
		}
		Expect(there.leases()).To(HaveExactElements("default." + addr))
		before, _ := there.allocations()
		n.ipam = object{"ranges": json.RawMessage(`[[{"subnet": "10.30.0.0/24"}]]`), "guard": "whereabouts"}
		n.succeeds("CHECK", "moved", nil)
		n.succeeds("DEL", "moved", nil)
		Expect(there.leases()).To(BeEmpty())
		after, _ := there.allocations()
		Expect(after).To(HaveLen(len(before) - 1))
	})
})
