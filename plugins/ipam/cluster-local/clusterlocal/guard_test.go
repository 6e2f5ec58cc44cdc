package clusterlocal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// entries returns the entries of a pool: offset, container and interface.
func (s *server) entries(name string) (list []string) {
	s.Lock()
	defer s.Unlock()
	for offset, e := range s.pools[name].Spec.Allocations {
		list = append(list, strings.TrimSpace(offset+" "+e.Container+" "+e.IfName))
	}
	slices.Sort(list)
	return list
}

// whereaboutsEntries returns entries that whereabouts wrote, for containers that are named after the offset.
func whereaboutsEntries(offsets ...int) map[string]poolEntry {
	all := map[string]poolEntry{}
	for _, o := range offsets {
		all[fmt.Sprint(o)] = poolEntry{Container: fmt.Sprint("old", o), Pod: fmt.Sprint("default/old", o),
			IfName: "net1"}
	}
	return all
}

const pool8 = "10.30.0.0-29"

var _ = Describe("the guard", Label("cluster-guard"), func() {
	var s *server
	var n node

	BeforeEach(func() {
		s = newServer()
		n = s.node("node-a", ranges8).withKeys(Object{"guard": "whereabouts"})
	})

	It("gives nothing that whereabouts has lent, and has it lend nothing that we give", func() {
		s.putPool(pool8, "10.30.0.0/29", whereaboutsEntries(2, 3, 5))
		given := []string{n.add("one"), n.add("two")}
		Expect(given).To(ConsistOf("10.30.0.4", "10.30.0.6"))
		Expect(s.entries(pool8)).To(ConsistOf("2 old2 net1", "3 old3 net1", "5 old5 net1",
			MatchRegexp("4 (one|two) eth0"), MatchRegexp("6 (one|two) eth0")))
		s.requests()
		Expect(n.fails(11, "ADD", "three")).To(ContainSubstring("others are allocated by whereabouts"))
		Expect(s.requests()).NotTo(ContainSubstring("POST"), "what whereabouts has lent is not asked for")
		Expect(n.withKeys(Object{"ranges": json.RawMessage(ranges8)}).fails(103, "ADD", "four",
			Object{"runtimeConfig": Object{"ips": []string{"10.30.0.5"}}})).To(ContainSubstring(`pod "default/old5"`))
		n.succeeds("DEL", "one")
		n.succeeds("GC", "", valid())
		Expect(s.entries(pool8)).To(HaveLen(3))
		Expect(s.leaseNames()).To(BeEmpty())
	})

	It("tries another address when whereabouts lends this one meanwhile", func() {
		s.putPool(pool8, "10.30.0.0/29", whereaboutsEntries())
		var asked string
		s.set(failFirst(1, "PATCH", func(_ http.ResponseWriter, _ *http.Request, serve func()) {
			s.Lock()
			for name := range s.leases { // the one that is asked for
				s.putPool(pool8, "10.30.0.0/29", map[string]poolEntry{name[len(name)-1:]: {Container: "theirs"}})
				asked = name
			}
			s.Unlock()
			serve()
		}))
		given := "default." + n.add("one")
		Expect(given).NotTo(Equal(asked))
		Expect(s.leaseNames()).To(HaveExactElements(given))
		Expect(s.entries(pool8)).To(ConsistOf(HaveSuffix(" theirs"), HaveSuffix(" one eth0")))
		file := nstest.Must(filepath.Glob(n.dataDir + "/default/*.json"))[0]
		Expect(os.ReadFile(file)).NotTo(ContainSubstring(asked), "no name of an address that was given back")
	})

	It("takes no page of a proxy for an entry that was written", func() {
		s.putPool(pool8, "10.30.0.0/29", whereaboutsEntries(2))
		s.set(failFirst(1, "PATCH", says(200, "<html>hello</html>")))
		n.add("one")
		Expect(s.entries(pool8)).To(ConsistOf("2 old2 net1", HaveSuffix(" one eth0")))
	})

	It("makes the pool that whereabouts would, and knows its own entry when the answer is lost", func() {
		n.ipam["ranges"] = json.RawMessage(`[[{"subnet": "10.30.0.0/29"}], [{"subnet": "2001:db8::/64"}]]`)
		s.set(failFirst(1, "PATCH", swallow))
		Expect(n.withKeys(Object{"space": "shop"}).call("ADD", "one").Added().IPs).To(HaveLen(2))
		Expect(s.entries("shop-" + pool8)).To(HaveLen(1))
		Expect(s.entries("shop-2001-db8---64")).To(HaveLen(1))
		n.withKeys(Object{"space": "shop"}).succeeds("DEL", "one")
		Expect(s.entries("shop-" + pool8)).To(BeEmpty())
		Expect(s.entries("shop-2001-db8---64")).To(BeEmpty())
	})

	It("has DEL end what whereabouts lent to a container, before anything is imported", func() {
		all := whereaboutsEntries(2, 3)
		all["4"] = poolEntry{Container: "old2", Pod: "default/old2"} // without its interface
		s.putPool(pool8, "10.30.0.0/29", all)
		a := n.exec8("DEL", "old2", "net1", Object{"prevResult": Object{"cniVersion": "1.1.0",
			"ips": []Object{{"address": "10.30.0.4/29"}}}})
		Expect(a.Code).To(BeZero(), a.Stdout)
		Expect(s.entries(pool8)).To(HaveExactElements("3 old3 net1"))
	})

	It("fails with what the server says that refuses an entry, without trying again", func() {
		s.putPool(pool8, "10.30.0.0/29", whereaboutsEntries(2))
		s.set(failFirst(1000, "PATCH", func(w http.ResponseWriter, _ *http.Request, _ func()) {
			refuse(w, http.StatusUnprocessableEntity, "Invalid", pool8, "allocations.4.podref: Required value")
		}))
		Expect(n.fails(5, "ADD", "one")).To(ContainSubstring("podref: Required value"))
		Expect(strings.Count(s.requests(), "PATCH")).To(Equal(1))
		Expect(s.leaseNames()).To(BeEmpty())
		Expect(n.exec8("DEL", "old2", "net1", nil).Failed(5)).To(ContainSubstring("podref: Required value"))
		Expect(strings.Count(s.requests(), "PATCH")).To(Equal(1))
	})

	It("fails with what the server says that refuses a pool, without trying again", func() {
		s.set(func(w http.ResponseWriter, r *http.Request, _ func()) bool {
			isPool := r.Method == "POST" && strings.HasPrefix(r.URL.Path, poolsPath)
			if isPool {
				refuse(w, http.StatusUnprocessableEntity, "Invalid", pool8, "spec.range: Invalid value")
			}
			return isPool
		})
		Expect(n.fails(5, "ADD", "one")).To(ContainSubstring("spec.range: Invalid value"))
		Expect(strings.Count(s.requests(), "POST")).To(Equal(2), "the lease, the pool")
		Expect(s.leaseNames()).To(BeEmpty())
	})

	It("pauses while other nodes change the pool, and ends with code 11", func() {
		s.putPool(pool8, "10.30.0.0/29", whereaboutsEntries(2))
		s.set(failFirst(1000, "PATCH", func(_ http.ResponseWriter, _ *http.Request, serve func()) {
			s.Lock()
			s.putPool(pool8, "10.30.0.0/29", whereaboutsEntries(2))
			s.Unlock()
			serve()
		}))
		n = n.withTimeout(3 * time.Second)
		Expect(n.fails(11, "ADD", "one")).To(ContainSubstring("testing path failed"))
		Expect(strings.Count(s.requests(), "PATCH")).To(BeNumerically("<", 20))
		Expect(n.exec8("DEL", "old2", "net1", nil).Failed(11)).To(ContainSubstring("testing path failed"))
		Expect(strings.Count(s.requests(), "PATCH")).To(BeNumerically("<", 20))
	})

	It("keeps both entries of an attachment in a pool that has none yet", func() {
		s.putPool(pool8, "10.30.0.0/29", nil)
		n.ipam["ranges"] = json.RawMessage(`[[{"subnet": "10.30.0.0/29", "rangeEnd": "10.30.0.3"}],
			[{"subnet": "10.30.0.0/29", "rangeStart": "10.30.0.4"}]]`)
		Expect(n.call("ADD", "one").Added().IPs).To(HaveLen(2))
		Expect(s.entries(pool8)).To(HaveLen(2))
	})

	DescribeTable("frees the address of a deleted node's lease in the pool too", Label("cluster-reclaim"),
		func(add func() string) {
			s.putPool(pool8, "10.30.0.0/29", whereaboutsEntries(3, 4, 5, 6))
			s.pools[pool8].Spec.Allocations["2"] = poolEntry{Container: "theirs", IfName: "eth0"}
			s.addLease("default", "10.30.0.2", "gone", time.Hour)
			Expect(add()).To(Equal("10.30.0.2"))
			Expect(s.entries(pool8)).To(ContainElement("2 one eth0"))
		},
		Entry("by ADD", func() string { return n.add("one") }),
		Entry("by cluster-local reclaim", func() string {
			var out bytes.Buffer
			args := []string{"reclaim", "--kubeconfig", n.kubeconfig, "--yes"}
			env := skel.Env{Args: args, Stdout: &out, Stderr: &out}
			Expect(skel.Run(GinkgoT().Context(), Plugin(), env)).To(BeZero(), out.String())
			return n.withKeys(Object{"reclaim": "never"}).add("one")
		}))

	It("does not prevent reclaim as a user who may not read pools", Label("cluster-reclaim"), func() {
		s.addLease("default", "10.30.0.2", "gone", time.Hour)
		s.set(func(w http.ResponseWriter, r *http.Request, _ func()) bool {
			isPool := strings.HasPrefix(r.URL.Path, poolsPath)
			if isPool {
				refuse(w, http.StatusForbidden, "Forbidden", "", "ippools is forbidden")
			}
			return isPool
		})
		var out bytes.Buffer
		env := skel.Env{Args: []string{"reclaim", "--kubeconfig", n.kubeconfig, "--yes"}, Stdout: &out, Stderr: &out}
		Expect(skel.Run(GinkgoT().Context(), Plugin(), env)).To(BeZero(), out.String())
		Expect(s.leaseNames()).To(BeEmpty())
	})

	It("removes an entry that is created after DEL, unless the attachment is back", Label("cluster-late"), func() {
		s.putPool(pool8, "10.30.0.0/29", whereaboutsEntries(2, 3, 4, 5))
		s.set(failFirst(1000, "PATCH", drop))
		n.withTimeout(time.Second).fails(11, "ADD", "one")
		Expect(s.leaseNames()).To(BeEmpty())
		Expect(n.records()).To(ConsistOf(HavePrefix("late/")))
		s.set(nil)
		late := whereaboutsEntries(2, 3, 4, 5)
		late["6"] = poolEntry{Container: "one", IfName: "eth0"}
		s.putPool(pool8, "10.30.0.0/29", late)
		n.succeeds("DEL", "another")
		Expect(s.entries(pool8)).To(HaveLen(4))
		Expect(n.add("one")).To(Equal("10.30.0.6"))
		n.succeeds("DEL", "another")
		Expect(s.entries(pool8)).To(ContainElement("6 one eth0"))
	})

	It("reads pools in pages", func() {
		s.page = 1
		s.putPool("10.31.0.0-29", "10.31.0.0/29", whereaboutsEntries(2))
		s.putPool(pool8, "10.30.0.0/29", whereaboutsEntries(2, 3, 5))
		Expect([]string{n.add("one"), n.add("two")}).To(ConsistOf("10.30.0.4", "10.30.0.6"))
	})

	It("fails ADD, but not DEL, if whereabouts is uninstalled", func() {
		s.pools = nil
		Expect(n.fails(11, "ADD", "one")).To(ContainSubstring("remove ipam.guard"))
		n.succeeds("DEL", "one")
		Expect(n.withKeys(Object{"guard": "x"}).fails(7, "ADD", "one")).To(ContainSubstring(`ipam.guard: "x" must be`))
	})
})

// exec8 makes a call for another interface than eth0.
func (n node) exec8(command, id, ifname string, more Object) Answer {
	var out, errs bytes.Buffer
	code := skel.Run(GinkgoT().Context(), Plugin().Untyped(), skel.Env{Limit: n.limit, Stdout: &out, Stderr: &errs,
		Vars:  append(n.vars(command, id), "CNI_IFNAME="+ifname),
		Stdin: strings.NewReader(Text(Merge(n.conf(), more)))})
	return Answer{Code: code, Stdout: out.String(), Stderr: errs.String()}
}

var _ = Describe("cluster-local import", Label("cluster-import"), func() {
	var s *server
	var n node
	var cache string

	run := func(args ...string) Answer {
		var out, errs bytes.Buffer
		code := importCommand(skel.Env{Args: append([]string{"import", "--cache", "/none:" + cache}, args...),
			Stdout: &out, Stderr: &errs})
		return Answer{Code: code, Stdout: out.String(), Stderr: errs.String()}
	}
	// runs adds a container with an address to libcni's cache.
	runs := func(id, addr string) {
		GinkgoHelper()
		conf := Object{"cniVersion": "1.0.0", "name": "lan", "plugins": []Object{{"type": "macvlan", "ipam": Object{
			"type": "whereabouts", "range": "10.30.0.0/29", "node": "node-a", "dataDir": n.dataDir,
			"kubernetes": Object{"kubeconfig": n.kubeconfig}}}}}
		file := Object{"kind": "cniCacheV1", "containerId": id, "config": []byte(Text(conf)), "ifName": "net1",
			"networkName": "lan", "cniArgs": [][]string{{"K8S_POD_UID", "uid-" + id}},
			"result": Object{"cniVersion": "1.0.0", "ips": []Object{{"address": addr + "/29"}}}}
		name := filepath.Join(cache, "results", "lan-"+id+"-net1")
		Expect(os.WriteFile(name, []byte(Text(file)), 0o600)).To(Succeed())
	}

	BeforeEach(func() {
		s = newServer()
		n = s.node("node-a", ranges8)
		cache = GinkgoT().TempDir()
		Expect(os.Mkdir(filepath.Join(cache, "results"), 0o755)).To(Succeed())
		s.putPool(pool8, "10.30.0.0/29", whereaboutsEntries(2, 3, 5)) // the last one of another node
		runs("old2", "10.30.0.2")
		runs("old3", "10.30.0.3")
	})

	It("imports whereabouts' allocations of this node once, and changes none of its objects", func() {
		a := run()
		Expect(a.Code).To(BeZero(), a.Stderr)
		Expect(a.Stdout).To(And(ContainSubstring(`default.10.30.0.2`), ContainSubstring(`pod "default/old2"`),
			ContainSubstring("2 addresses that whereabouts allocated to containers of this node would be imported")))
		Expect(s.leaseNames()).To(BeEmpty())
		Expect(n.records()).To(BeEmpty())

		before := s.entries(pool8)
		s.requests()
		Expect(run("--yes").Stdout).To(ContainSubstring("2 addresses that whereabouts allocated to containers of " +
			"this node were imported; 0 had been imported before"))
		Expect(s.requests()).To(Equal("GET POST POST"))
		Expect(s.leaseNames()).To(HaveExactElements("default.10.30.0.2", "default.10.30.0.3"))
		Expect(s.leases["default.10.30.0.2"].Spec).To(And(HaveField("Pod", "default/old2"),
			HaveField("PodUID", "uid-old2"), HaveField("Network", "lan"), HaveField("IfName", "net1"),
			HaveField("Node", "node-a")))
		Expect(s.entries(pool8)).To(Equal(before))
		Expect(run("--yes").Stdout).To(ContainSubstring("0 addresses that whereabouts allocated to containers of " +
			"this node were imported; 2 had been imported before"))

		n.network = "lan"
		a = n.withKeys(Object{"guard": "whereabouts"}).exec8("DEL", "old2", "net1", nil)
		Expect(a.Code).To(BeZero(), a.Stdout)
		Expect(s.leaseNames()).To(HaveExactElements("default.10.30.0.3"))
		Expect(s.entries(pool8)).To(HaveExactElements("3 old3 net1", "5 old5 net1"))
	})

	It("goes on where it was killed, also when the answer was lost", func() {
		s.set(failFirst(1, "POST", swallow))
		a := run("--yes")
		Expect(a.Code).To(BeZero(), a.Stderr)
		Expect(s.leaseNames()).To(HaveLen(2))
		records := place{dataDir: n.dataDir, space: "default"}.records()
		for _, kept := range nstest.Must(records.List()) { // as before the answer
			kept.Record.Held, kept.Record.Open = nil, kept.Record.names()
			Expect(records.Put(GinkgoT().Context(), kept.Record)).To(Succeed())
		}
		Expect(run("--yes").Stdout).To(ContainSubstring("2 addresses that"))
		Expect(run("--yes").Stdout).To(ContainSubstring("2 had been imported before"))
		Expect(s.leaseNames()).To(HaveLen(2))
	})

	DescribeTable("reports a kubeconfig that cannot be used", func(path, want string) {
		a := run("--kubeconfig", path)
		Expect(a.Code).To(Equal(1))
		Expect(a.Stderr).To(ContainSubstring(want))
	},
		Entry("because it is missing", "/etc/nowhere", "kubeconfig /etc/nowhere: open"),
		Entry("because a container may have written it", "/tmp/k", `--kubeconfig: "/tmp/k" is not below /etc`))

	It("reports addresses that it cannot import, and imports the others", func() {
		runs("new", "10.30.0.6")                        // of no pool
		runs("other", "10.30.0.5")                      // of another container
		s.addLease("default", "10.30.0.2", "node-b", 0) // taken
		a := run("--yes")
		Expect(a.Code).To(Equal(1))
		Expect(a.Stderr).To(And(ContainSubstring("10.30.0.6 of network \"lan\""), ContainSubstring("is not in a pool"),
			ContainSubstring(`allocated to another container, pod "default/old5"`), ContainSubstring(`node "node-b"`)))
		Expect(a.Stdout).To(ContainSubstring("1 addresses that"))
		Expect(s.leaseNames()).To(HaveExactElements("default.10.30.0.2", "default.10.30.0.3"))
	})
})
