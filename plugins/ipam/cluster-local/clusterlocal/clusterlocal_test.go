package clusterlocal

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestClusterLocal(t *testing.T) { nstest.RunSpecs(t, "plugins/ipam/cluster-local/clusterlocal") }

var _ = It("has its schema in docs/schema", func() {
	ExpectPluginSchema(Plugin(), Object{"anyOf": []any{
		HasKey("ipam.subnet", Object{"type": "string"}),
		HasKey("ipam.ranges", Object{"type": "array", "minItems": 1}),
		HasKey("runtimeConfig.ipRanges", Object{"type": "array", "minItems": 1}),
		HasKey("capabilities.ipRanges", Object{"const": true}),
	}})
})

// node is a node of the server's cluster with a network configuration.
type node struct {
	*server
	name, dataDir, kubeconfig, network string
	ipam                               Object
	more                               Object // keys of the network
	args                               string
	limit                              time.Duration
}

const ranges8 = `[[{"subnet": "10.30.0.0/29"}]]` // five addresses and the gateway

func (s *server) node(name, ranges string) node {
	GinkgoHelper()
	return node{server: s, name: name, dataDir: GinkgoT().TempDir(), kubeconfig: s.kubeconfig("node-" + name),
		network: "net", ipam: Object{"ranges": json.RawMessage(ranges)}, limit: nstest.Patience(20 * time.Second)}
}

// newNode returns a server with a node whose network has five addresses.
func newNode() (*server, node) {
	GinkgoHelper()
	s := newServer()
	return s, s.node("node-a", ranges8)
}

// newNodes returns a server with two nodes of such a network.
func newNodes() (s *server, a, b node) {
	GinkgoHelper()
	s, a = newNode()
	return s, a, s.node("node-b", ranges8)
}

// withKeys returns the node with more keys in ipam.
func (n node) withKeys(ipam Object) node {
	n.ipam = Merge(n.ipam, ipam)
	return n
}

// withTimeout returns the node with a time limit for its calls.
func (n node) withTimeout(limit time.Duration) node {
	n.limit = limit
	return n
}

func (n node) conf() Object {
	ipam := Merge(Object{"type": "cluster-local", "dataDir": n.dataDir, "kubeconfig": n.kubeconfig,
		"node": n.name}, n.ipam)
	return Merge(Object{"cniVersion": "1.1.0", "name": n.network, "type": "macvlan", "ipam": ipam}, n.more)
}

func (n node) vars(command, id string) []string {
	return []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=/not/looked/at",
		"CNI_PATH=/x", "CNI_ARGS=" + n.args}
}

func (n node) call(command, id string, more ...Object) Answer {
	GinkgoHelper()
	return n.serveAs(Plugin().Untyped(), command, id, more...)
}

func (n node) serveAs(p skel.Plugin[any], command, id string, more ...Object) Answer {
	GinkgoHelper()
	var out, errs bytes.Buffer
	conf := n.conf()
	for _, m := range more {
		conf = Merge(conf, m)
	}
	code := skel.Run(context.Background(), p, skel.Env{Vars: n.vars(command, id), Limit: n.limit,
		Stdin: strings.NewReader(Text(conf)), Stdout: &out, Stderr: &errs})
	return Answer{Code: code, Stdout: out.String(), Stderr: errs.String()}
}

// exec returns the call as a process that is not started yet.
func (n node) exec(command, id string) (*exec.Cmd, *bytes.Buffer) {
	GinkgoHelper()
	var out bytes.Buffer
	cmd := exec.Command(nstest.Build("cluster-local"))
	cmd.Env, cmd.Stdin, cmd.Stdout = n.vars(command, id), strings.NewReader(Text(n.conf())), &out
	return cmd, &out
}

// add makes an ADD, which must succeed, and returns its addresses.
func (n node) add(id string) string {
	GinkgoHelper()
	return strings.Join(addressesOf(n.call("ADD", id).Added()), " ")
}

func addressesOf(r Result) (list []string) {
	for _, ip := range r.IPs {
		addr, _, _ := strings.Cut(ip.Address, "/")
		list = append(list, addr)
	}
	return list
}

func (n node) succeeds(command, id string, more ...Object) {
	GinkgoHelper()
	a := n.call(command, id, more...)
	Expect(a.Code).To(BeZero(), a.Stdout)
	Expect(a.Stdout).To(BeEmpty())
}

func (n node) fails(code uint, command, id string, more ...Object) string {
	GinkgoHelper()
	return n.call(command, id, more...).Failed(code)
}

// records returns the record files, and the tombstones with their directory.
func (n node) records() (list []string) {
	GinkgoHelper()
	for _, pattern := range []string{"*.json", "late/*.json"} {
		found := nstest.Must(filepath.Glob(filepath.Join(n.dataDir, "default", pattern)))
		for _, f := range found {
			list = append(list, filepath.Base(filepath.Dir(f))+"/"+filepath.Base(f))
		}
	}
	return list
}

func valid(ids ...string) Object {
	list := []Object{}
	for _, id := range ids {
		list = append(list, Object{"containerID": id, "ifname": "eth0"})
	}
	return Object{"cni.dev/valid-attachments": list}
}

var _ = Describe("ADD", Label("cluster-add"), func() {
	It("makes one object for each address, named by it", func() {
		s := newServer()
		n := s.node("node-a", `[[{"subnet": "10.30.0.0/16", "gateway": "10.30.0.1"}],
			[{"subnet": "2001:db8:30::/64"}]]`)
		n.args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=u1"
		r := n.withKeys(Object{"routes": []Object{{"dst": "0.0.0.0/0"}}}).call("ADD", "one").Added()
		Expect(r.IPs).To(HaveLen(2))
		Expect(r.IPs[0].Address).To(MatchRegexp(`^10\.30\.\d+\.\d+/16$`))
		Expect(r.IPs[0].Gateway).To(Equal("10.30.0.1"))
		Expect(r.IPs[1].Address).To(MatchRegexp(`^2001:db8:30:0?:.*/64$`))
		Expect(r.Routes).To(HaveLen(1))
		Expect(s.requests()).To(Equal("POST POST"))
		Expect(s.leaseNames()).To(HaveLen(2))
		for name, o := range s.leases {
			Expect(name).To(MatchRegexp(`^default\.(10\.30\.\d+\.\d+|2001-0db8-0030-0000(-[0-9a-f]{4}){4})$`))
			Expect(o.Spec.Nonce).NotTo(BeEmpty())
			o.Spec.Nonce = ""
			Expect(o.Spec).To(Equal(lease{Space: "default", Node: "node-a", Network: "net", Container: "one",
				IfName: "eth0", Pod: "shop/web-0", PodUID: "u1"}))
		}
		Expect(n.records()).To(HaveLen(1))
		n.succeeds("CHECK", "one", Object{"prevResult": json.RawMessage(r.Text)})
		n.succeeds("DEL", "one")
		Expect(s.leaseNames()).To(BeEmpty())
		Expect(n.records()).To(BeEmpty())
	})

	It("is refused for an attachment that has addresses", func() {
		n := newServer().node("node-a", ranges8)
		addr := n.add("one")
		Expect(n.fails(cni.CodeExists, "ADD", "one")).To(ContainSubstring(addr + " has been allocated to"))
		Expect(n.leaseNames()).To(HaveLen(1))
		n.succeeds("DEL", "one")
		n.add("one")
	})

	It("gives no address twice to any node or network of a space, no gateway, and nothing excluded", func() {
		s := newServer()
		a := s.node("node-a", ranges8).withKeys(Object{"exclude": []string{"10.30.0.4"}})
		b := s.node("node-b", ranges8).withKeys(Object{"exclude": []string{"10.30.0.4"}})
		b.network = "other"
		seen := []string{a.add("1"), b.add("1"), a.add("2"), b.add("2")}
		Expect(seen).To(ConsistOf("10.30.0.2", "10.30.0.3", "10.30.0.5", "10.30.0.6"))
		says := b.fails(cni.CodeTryAgain, "ADD", "3")
		Expect(says).To(ContainSubstring("no IP addresses available in range set 0"))
		Expect(says).To(ContainSubstring("4 of its 5 are held, 0 belong to deleted nodes"))
		Expect(a.withKeys(Object{"space": "tenant-2"}).add("3")).NotTo(BeEmpty())
	})

	It("gives a pod the address that it had, on any node, while that is free", func() {
		s := newServer()
		pods := `[[{"subnet": "10.30.0.0/16"}]]`
		a, b := s.node("node-a", pods), s.node("node-b", pods)
		a.args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"
		b.args = a.args
		had := a.add("one")
		a.succeeds("DEL", "one")
		Expect(b.add("two")).To(Equal(had))
		Expect(a.add("three")).NotTo(Equal(had))
	})

	It("gives the address that is asked for, or says who has it", func() {
		_, a, b := newNodes()
		a.args = "IP=10.30.0.5;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"
		Expect(a.add("one")).To(Equal("10.30.0.5"))
		b.more = Object{"runtimeConfig": Object{"ips": []string{"10.30.0.5/29"}}}
		Expect(b.fails(cni.CodeConflict, "ADD", "two")).To(And(ContainSubstring("runtimeConfig.ips[0]"),
			ContainSubstring(`node "node-a"`), ContainSubstring(`pod "shop/web-0"`)))
		Expect(b.records()).To(BeEmpty())
	})

	It("invents no owner of an address whose lease is gone when it asks who has it", func() {
		s, n := newNode()
		s.set(func(w http.ResponseWriter, r *http.Request, _ func()) bool {
			if r.Method == "POST" {
				refuse(w, http.StatusConflict, "AlreadyExists", "default.10.30.0.5", "already exists")
			}
			return r.Method == "POST"
		})
		n.args = "IP=10.30.0.5"
		Expect(n.fails(cni.CodeConflict, "ADD", "one")).To(ContainSubstring("already for an unknown owner"))
	})

	It("takes ranges from the runtime", func() {
		n := newServer().node("node-a", `[]`)
		n.more = Object{"capabilities": Object{"ipRanges": true}}
		Expect(n.fails(cni.CodeConfig, "ADD", "one")).To(ContainSubstring("runtimeConfig.ipRanges"))
		n.more = Object{"runtimeConfig": Object{"ipRanges": json.RawMessage(`[[{"subnet": "10.31.0.0/30"}]]`)}}
		Expect(n.add("one")).To(Equal("10.31.0.2"))
	})

	It("makes no lease in a name that the cluster does not know, and asks once in a boot", func() {
		s := newServer()
		n := s.node("node-x", ranges8)
		Expect(n.fails(cni.CodeConfig, "ADD", "one")).To(And(
			ContainSubstring(`ipam.node: "node-x" is not a node of the cluster`),
			ContainSubstring("kubectl get nodes")))
		Expect(s.leaseNames()).To(BeEmpty())
		Expect(n.records()).To(BeEmpty())
		s.nodes["node-x"] = ""
		s.looked = nil
		n.add("one")
		n.add("two")
		Expect(s.looked).To(Equal([]string{"/api/v1/nodes/node-x"}))
	})

	It("keeps nothing when the second set is full", func() {
		s := newServer()
		n := s.node("node-a", `[[{"subnet": "10.30.0.0/24"}], [{"subnet": "2001:db8::/126"}]]`)
		s.addLease("default", "2001:0db8:0000:0000:0000:0000:0000:0002", "node-b", 0)
		s.addLease("default", "2001:0db8:0000:0000:0000:0000:0000:0003", "node-b", 0)
		Expect(n.fails(cni.CodeTryAgain, "ADD", "one")).To(ContainSubstring("range set 1"))
		Expect(s.leaseNames()).To(HaveLen(2))
		Expect(n.records()).To(BeEmpty())
	})

	It("asks for a list once when it has tried all addresses of a set", func() {
		n := newServer().node("node-a", `[[{"subnet": "10.30.0.0/29"}]]`)
		for i := range 5 {
			n.add(fmt.Sprint("c", i))
		}
		n.server.asked = nil
		n.fails(cni.CodeTryAgain, "ADD", "more")
		Expect(n.server.asked).To(HaveExactElements(HavePrefix("POST"), HavePrefix("POST"), HavePrefix("POST"),
			HavePrefix("POST"), HavePrefix("POST"), "GET "+addresses))
	})

	It("gets no more leases in one answer than it asks for, however large the space is", func() {
		s := newServer()
		for i := range 3 * pageSize / 2 {
			if i != 777 {
				s.addLease("default", fmt.Sprintf("10.30.%d.%d", i/256, i%256), "node-b", 0)
			}
		}
		n := s.node("node-a", `[[{"subnet": "10.30.0.0/16", "rangeEnd": "10.30.29.75"}]]`)
		Expect(n.add("one")).To(Equal("10.30.3.9"))
		Expect(s.most).To(Equal(pageSize))
	})
})

var _ = Describe("DEL", Label("cluster-del"), func() {
	It("succeeds without a request when nothing is known", func() {
		s, n := newNode()
		n.kubeconfig = "/nowhere"
		n.succeeds("DEL", "one")
		n.withKeys(Object{"space": "UPPER/.."}).succeeds("DEL", "one")
		Expect(s.requests()).To(BeEmpty())
		Expect(filepath.Glob(n.dataDir + "/*")).To(BeEmpty())
	})

	It("fails while the store is down, and succeeds when it is repeated", func() {
		s, n := newNode()
		n.add("one")
		s.set(failFirst(1000, "DELETE", drop))
		says := n.withTimeout(300*time.Millisecond).fails(cni.CodeTryAgain, "DEL", "one")
		Expect(says).To(ContainSubstring(s.URL + " does not serve DELETE"))
		Expect(n.records()).To(HaveLen(1))
		s.set(nil)
		n.succeeds("DEL", "one")
		Expect(s.leaseNames()).To(BeEmpty())
		n.succeeds("DEL", "one")
	})

	It("goes by prevResult without a record, and takes nothing of others", func() {
		s, a, b := newNodes()
		r := a.call("ADD", "one").Added()
		prev := Object{"prevResult": json.RawMessage(r.Text)}
		b.succeeds("DEL", "one", prev)
		a.succeeds("DEL", "two", prev)
		Expect(s.leaseNames()).To(HaveLen(1))
		Expect(os.RemoveAll(a.dataDir)).To(Succeed())
		a.succeeds("DEL", "one", prev)
		Expect(s.leaseNames()).To(BeEmpty())
	})

	DescribeTable("asks once, and looks only where it does not know which lease is its own",
		func(change func(s *server, n node, name string), requests string) {
			s, n := newNode()
			addr := n.add("one")
			s.requests()
			change(s, n, "default."+addr)
			n.succeeds("DEL", "one")
			Expect(s.requests()).To(Equal(requests))
			Expect(s.leaseNames()).To(BeEmpty())
			Expect(n.records()).To(BeEmpty())
		},
		Entry("the lease that ADD made", func(*server, node, string) {}, "DELETE"),
		Entry("one that a late request made again", func(s *server, _ node, name string) {
			again := s.leases[name]
			s.put(&again)
		}, "DELETE GET DELETE"),
		Entry("one of a record without UIDs, as versions before wrote", func(_ *server, n node, _ string) {
			file := nstest.Must(filepath.Glob(n.dataDir + "/default/*.json"))[0]
			var r record
			Expect(json.Unmarshal(nstest.Must(os.ReadFile(file)), &r)).To(Succeed())
			Expect(r.UIDs).NotTo(BeEmpty())
			r.UIDs = nil
			Expect(os.WriteFile(file, nstest.Must(json.Marshal(r)), 0o600)).To(Succeed())
		}, "GET DELETE"))

	It("says what an admission says that refuses, and does not ask again and again", func() {
		s, n := newNode()
		n.add("one")
		s.requests()
		s.set(failFirst(1000, "DELETE", func(w http.ResponseWriter, _ *http.Request, _ func()) {
			refuse(w, http.StatusConflict, "Conflict", "", "not in this hour")
		}))
		Expect(n.fails(cni.CodeIO, "DEL", "one")).To(ContainSubstring("not in this hour"))
		Expect(s.requests()).To(Equal("DELETE GET"))
		Expect(n.records()).To(HaveLen(1))
	})

	It("leaves an address that another attachment has since reserved", func() {
		s, n := newNode()
		addr := n.add("one")
		delete(s.leases, "default."+addr)
		s.addLease("default", addr, "node-b", 0)
		Expect(n.fails(cni.CodeDrift, "CHECK", "one")).To(ContainSubstring(addr + ` is reserved for node "node-b"`))
		n.succeeds("DEL", "one")
		Expect(s.leaseNames()).To(HaveLen(1))
		Expect(n.records()).To(BeEmpty())
	})

	It("does without a record that is damaged, whose lease the next GC finds", func() {
		s, n := newNode()
		n.succeeds("GC", "", valid())
		n.add("one")
		file := nstest.Must(filepath.Glob(n.dataDir + "/default/*.json"))[0]
		Expect(os.WriteFile(file, []byte("{"), 0o600)).To(Succeed())
		n.succeeds("DEL", "one")
		Expect(n.records()).To(BeEmpty())
		n.succeeds("GC", "", valid())
		Expect(s.leaseNames()).To(BeEmpty())
	})
})

var _ = Describe("requests", Label("cluster-requests"), func() {
	It("are repeated while the server is busy, after as long as it says", func() {
		s, n := newNode()
		busy := func(w http.ResponseWriter, r *http.Request, _ func()) {
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusTooManyRequests, "TooManyRequests", "", "too many requests")
		}
		s.set(failFirst(1, "POST", busy))
		began := time.Now()
		n.add("one")
		Expect(time.Since(began)).To(BeNumerically(">=", time.Second))
		s.set(failFirst(2, "DELETE", says(503, "gateway")))
		n.succeeds("DEL", "one")
		Expect(s.requests()).To(Equal("POST POST DELETE DELETE DELETE"))
		Expect(n.records()).To(BeEmpty())
	})

	It("whose answer is lost are told by the nonce", func() {
		s, n := newNode()
		s.set(failFirst(1, "POST", swallow))
		addr := n.add("one")
		Expect(s.leaseNames()).To(Equal([]string{"default." + addr}))
		Expect(s.requests()).To(Equal("POST POST GET"))
		n.succeeds("CHECK", "one")
		s.set(failFirst(1, "DELETE", swallow))
		n.succeeds("DEL", "one")
		Expect(s.leaseNames()).To(BeEmpty())
	})

	It("that are carried out after DEL are found by later calls", Label("cluster-late"), func() {
		s, n := newNode()
		var late func()
		s.set(failFirst(1, "POST", func(w http.ResponseWriter, r *http.Request, _ func()) {
			body := new(bytes.Buffer)
			_, _ = body.ReadFrom(r.Body)
			late = func() {
				var o object
				Expect(json.Unmarshal(body.Bytes(), &o)).To(Succeed())
				s.Lock()
				defer s.Unlock()
				s.put(&o)
			}
			panic(http.ErrAbortHandler)
		}))
		n.add("one")
		n.succeeds("DEL", "one")
		Expect(s.leaseNames()).To(BeEmpty())
		Expect(n.records()).To(ConsistOf(HavePrefix("late/")))
		late()
		Expect(s.leaseNames()).To(HaveLen(1))
		n.succeeds("DEL", "another")
		Expect(s.leaseNames()).To(BeEmpty())
		// The request may be carried out after the last sweep, so the tombstone stays until its maximum age.
		late()
		n.succeeds("GC", "", valid())
		Expect(s.leaseNames()).To(BeEmpty())
		file := nstest.Must(filepath.Glob(n.dataDir + "/default/late/*.json"))[0]
		var t tombstone
		Expect(json.Unmarshal(nstest.Must(os.ReadFile(file)), &t)).To(Succeed())
		t.Since -= lateRequestTime
		late()
		Expect(os.WriteFile(file, []byte(Text(t)), 0o600)).To(Succeed())
		n.succeeds("DEL", "another")
		Expect(s.leaseNames()).To(BeEmpty())
		Expect(n.records()).To(BeEmpty())
	})

	It("are looked for in turn, and not for ever", Label("cluster-late"), func() {
		s, n := newNode()
		p := place{space: "default", dataDir: n.dataDir}
		boot := nstest.Must(sysctl.BootID())
		for i, addr := range []string{"10.30.0.2", "10.30.0.3", "10.30.0.4", "10.30.0.5"} {
			t := tombstone{cni.Attachment{}, fmt.Sprint("theirs", i), []string{"default." + addr}, boot,
				sysctl.Uptime() - lateRequestTime}
			Expect(p.tombstones().Put(context.Background(), t)).To(Succeed())
			long := time.Now().Add(time.Duration(i-9) * time.Minute)
			file := filepath.Join(n.dataDir, "default/late", t.Hash()+".json")
			Expect(os.Chtimes(file, long, long)).To(Succeed())
		}
		// The server refuses to return two of the leases.
		s.set(func(w http.ResponseWriter, r *http.Request, _ func()) bool {
			isBad := strings.HasSuffix(r.URL.Path, ".2") || strings.HasSuffix(r.URL.Path, ".4")
			if isBad {
				refuse(w, http.StatusForbidden, "Forbidden", "", "not this one")
			}
			return isBad
		})
		bad := []string{"late/theirs0.json", "late/theirs2.json"}
		n.succeeds("DEL", "x")
		Expect(n.records()).To(ConsistOf(append(bad, "late/theirs3.json")))
		n.succeeds("DEL", "x")
		Expect(n.records()).To(ConsistOf(bad))
		t := tombstone{cni.Attachment{}, "theirs0", []string{"default.10.30.0.2"}, boot,
			sysctl.Uptime() - tombstoneMaxAge}
		Expect(p.tombstones().Put(context.Background(), t)).To(Succeed())
		n.succeeds("DEL", "x")
		Expect(n.records()).To(ConsistOf(bad[1]))
	})

	DescribeTable("whose answers are garbage are code 11, and nothing is left", func(code int, text string) {
		s, n := newNode()
		for _, method := range []string{"POST", "GET", "DELETE"} {
			s.set(failFirst(1000, method, says(code, text)))
			c := n.withTimeout(100 * time.Millisecond)
			a := c.call("ADD", "one")
			Expect(a.Verdict("ADD")).To(Succeed())
			if method == "POST" {
				Expect(a.Failed(cni.CodeTryAgain)).To(ContainSubstring(s.URL))
			}
			for _, command := range []string{"CHECK", "DEL", "GC"} {
				Expect(c.call(command, "one", valid()).Verdict(command)).To(Succeed())
			}
			s.set(nil)
			n.succeeds("DEL", "one")
			n.succeeds("GC", "", valid())
			Expect(s.leaseNames()).To(BeEmpty())
		}
	},
		Entry("a page of a proxy", 200, "<html>hello</html>"),
		Entry("half of an object", 200, `{"kind":"Address","metadata":{"na`),
		Entry("another object", 201, `{"kind":"Address","metadata":{"name":"default.10.30.0.9","uid":"1"}}`),
		Entry("another kind", 200, `{"kind":"Pod","metadata":{"name":"default.10.30.0.2","uid":"1"}}`),
		Entry("null", 200, `null`),
		Entry("an error that is not the API server's", 500, "oops"))

	DescribeTable("whose server asks for a pause that no call has end with code 11", func(pause string) {
		s := newServer()
		s.set(failFirst(1, "POST", func(w http.ResponseWriter, _ *http.Request, _ func()) {
			w.Header().Set("Retry-After", pause)
			refuse(w, http.StatusTooManyRequests, "TooManyRequests", "", "too many requests")
		}))
		Expect(s.node("node-a", ranges8).fails(cni.CodeTryAgain, "ADD", "one")).To(ContainSubstring("429"))
		Expect(s.requests()).To(Equal("POST"))
	},
		Entry("an hour", "3600"),
		Entry("more than a duration can be", "9223372037"),
		Entry("more than a number can be", "99999999999999999999"))

	DescribeTable("that no API server answers are sent three times", func(answer http.HandlerFunc, want ...string) {
		s, n := newNode()
		s.set(failFirst(1000, "POST", func(w http.ResponseWriter, r *http.Request, _ func()) { answer(w, r) }))
		for _, text := range want {
			Expect(n.fails(cni.CodeTryAgain, "ADD", "one")).To(And(ContainSubstring(text),
				ContainSubstring(n.kubeconfig)))
			Expect(s.requests()).To(Equal("POST POST POST GET"))
		}
	},
		Entry("a page of a proxy", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
			"invalid character"),
		Entry("a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://login.example/", http.StatusFound)
		}, `redirects to "https://login.example/"`),
		Entry("a code that HTTP does not know", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(999) },
			"999"))

	It("whose answer does not end are read up to a bound", func() {
		s := newServer()
		var sent atomic.Int64
		s.set(failFirst(1000, "POST", func(w http.ResponseWriter, _ *http.Request, _ func()) {
			sent.Store(0)
			for more := bytes.Repeat([]byte(" "), 1<<20); ; sent.Add(1) {
				if _, err := w.Write(more); err != nil {
					return
				}
			}
		}))
		cmd, out := s.node("node-a", ranges8).exec("ADD", "one")
		_ = cmd.Run()
		Expect(Answer{Code: 1, Stdout: out.String()}.Failed(cni.CodeTryAgain)).To(ContainSubstring("more than"))
		Expect(sent.Load()).To(BeNumerically("<", 64), "MiB, with what the sockets hold")
	})

	It("for a list whose pages do not end are bounded", func() {
		s := newServer()
		s.set(failFirst(10000, "GET", func(w http.ResponseWriter, _ *http.Request, _ func()) {
			reply(w, http.StatusOK, Object{"kind": "AddressList", "metadata": Object{"continue": "more"}})
		}))
		Expect(s.node("node-a", ranges8).fails(cni.CodeTryAgain, "GC", "", valid())).To(
			ContainSubstring("more than 200 pages"))
		Expect(strings.Fields(s.requests())).To(HaveLen(200))
	})

	It("pause while the server contradicts itself, and end with code 11", func() {
		s := newServer()
		n := s.node("node-a", ranges8).withTimeout(3 * time.Second)
		lost := false
		s.set(failFirst(1000, "POST", func(w http.ResponseWriter, _ *http.Request, _ func()) {
			if !lost {
				lost = true
				drop(nil, nil, nil)
			}
			refuse(w, http.StatusConflict, "AlreadyExists", "", "already exists")
		}))
		Expect(n.fails(cni.CodeTryAgain, "ADD", "one")).To(ContainSubstring("already exists"))
		Expect(len(strings.Fields(s.requests()))).To(BeNumerically("<", 40))

		s.set(nil)
		n.add("two")
		s.requests()
		s.set(failFirst(1000, "DELETE", func(w http.ResponseWriter, _ *http.Request, _ func()) {
			s.Lock()
			for _, o := range s.leases {
				s.put(&o)
			}
			s.Unlock()
			refuse(w, http.StatusConflict, "Conflict", "", "the UID in the precondition does not match")
		}))
		Expect(n.fails(cni.CodeTryAgain, "DEL", "two")).To(ContainSubstring("does not match"))
		Expect(len(strings.Fields(s.requests()))).To(BeNumerically("<", 40))
	})

	It("of a user that the server refuses are code 5, with its name", func() {
		s, n := newNode()
		n.kubeconfig = s.kubeconfig("somebody")
		Expect(n.fails(cni.CodeIO, "ADD", "one")).To(And(ContainSubstring(`refuses the user "u"`),
			ContainSubstring(n.kubeconfig), ContainSubstring("401")))
		n = s.node("node-a", ranges8)
		s.set(failFirst(1, "POST", func(w http.ResponseWriter, _ *http.Request, _ func()) {
			refuse(w, http.StatusForbidden, "Forbidden", "", "node-a may not create addresses")
		}))
		Expect(n.fails(cni.CodeIO, "ADD", "one")).To(ContainSubstring("node-a may not create addresses"))
		Expect(n.records()).To(BeEmpty())
	})

	It("of objects that the server does not know say what to apply", func() {
		s, n := newNode()
		s.set(failFirst(1, "POST", says(404, "404 page not found\n")))
		Expect(n.fails(cni.CodeTryAgain, "ADD", "one")).To(ContainSubstring("crd.yaml"))
		n.add("one")
		s.set(failFirst(1, "DELETE", says(404, "404 page not found\n")))
		Expect(n.fails(cni.CodeTryAgain, "DEL", "one")).To(ContainSubstring("crd.yaml"))
		n.succeeds("DEL", "one")
		Expect(s.leaseNames()).To(BeEmpty())
	})
})

var _ = It("says of a kubeconfig with exec that it is not supported", Label("cluster-kubeconfig"), func() {
	n := newServer().node("node-a", ranges8)
	text := strings.Replace(n.config("node-a"), "token: node-a", "exec: {command: aws}", 1)
	Expect(os.WriteFile(n.kubeconfig, []byte(text), 0o600)).To(Succeed())
	Expect(n.fails(cni.CodeUnsupportedField, "ADD", "one")).To(And(ContainSubstring(n.kubeconfig),
		ContainSubstring("exec is not supported")))
	Expect(n.records()).To(BeEmpty())
})

var _ = It("reads no kubeconfig that a container may have written, in any call", Label("cluster-kubeconfig"), func() {
	s, n := newNode()
	n.add("one")
	s.requests()
	n.kubeconfig = hostFile("/var/lib/kubelet/pods/1", s.config("node-a"))
	for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
		Expect(n.call(command, "one", valid()).Failed(cni.CodeConfig)).To(ContainSubstring("may have written"))
	}
	Expect(s.requests()).To(BeEmpty())
})

var _ = It("prefers the token in a kubeconfig's tokenFile to its token", Label("cluster-kubeconfig"), func() {
	s, n := newNode()
	n.kubeconfig = s.kubeconfig("expired, tokenFile: " + hostFile("/var/lib/kubelet", "node-a\n"))
	n.add("one")
	n.kubeconfig = s.kubeconfig("node-a, tokenFile: /nowhere")
	n.add("two")
})

var _ = It("reads a kubeconfig that is being written", Label("cluster-kubeconfig"), func() {
	s, n := newNode()
	Expect(os.WriteFile(n.kubeconfig, []byte("apiVersion: v1\n"), 0o600)).To(Succeed())
	whole := time.AfterFunc(100*time.Millisecond, func() {
		_ = os.WriteFile(n.kubeconfig, []byte(s.config("node-a")), 0o600)
	})
	defer whole.Stop()
	n.add("one")
})

var _ = Describe("CHECK", func() {
	It("misses a lease that was deleted, and one that prevResult has", func() {
		s, n := newNode()
		Expect(n.fails(cni.CodeDrift, "CHECK", "one")).To(ContainSubstring("no address is reserved"))
		addr := n.add("one")
		prev := `{"cniVersion":"1.1.0","ips":[{"address":"10.30.0.2/29"},{"address":"10.30.0.3/29"}]}`
		Expect(n.fails(cni.CodeDrift, "CHECK", "one", Object{"prevResult": json.RawMessage(prev)})).To(
			ContainSubstring("is not reserved for the attachment, which holds " + addr))
		delete(s.leases, "default."+addr)
		Expect(n.fails(cni.CodeDrift, "CHECK", "one")).To(ContainSubstring("default." + addr + ": it was deleted"))
	})
})

var _ = Describe("GC", Label("cluster-gc"), func() {
	It("releases what is not valid, and nothing of other nodes or networks", func() {
		s, a, b := newNodes()
		other := a
		other.network = "other"
		keep, others, elsewhere := a.add("keep"), b.add("gone"), other.add("gone")
		a.add("gone")
		a.succeeds("GC", "", valid("keep"))
		Expect(s.leaseNames()).To(ConsistOf("default."+keep, "default."+others, "default."+elsewhere))
		s.requests()
		a.succeeds("GC", "", valid("keep"))
		Expect(s.requests()).To(BeEmpty())
	})

	It("finds once in a boot what the node holds without a record", func() {
		s, n := newNode()
		keep := n.add("keep")
		n.add("gone")
		Expect(os.RemoveAll(n.dataDir)).To(Succeed())
		n.succeeds("GC", "", valid("keep"))
		Expect(s.leaseNames()).To(Equal([]string{"default." + keep}))
	})
})

var _ = It("lists what its records name, without a request", Label("cluster-list"), func() {
	s, n := newNode()
	addr := n.add("one")
	other := n.withKeys(Object{"space": "shop"})
	Expect(other.add("one")).NotTo(BeEmpty())
	s.requests()
	list := func(conf string) string {
		var out, errs bytes.Buffer
		env := skel.Env{Stdin: strings.NewReader(conf), Stdout: &out, Stderr: &errs}
		Expect(listCommand(env)).To(BeZero(), errs.String())
		return out.String()
	}
	Expect(list("")).To(Equal("null\n"))
	var held []cni.Holding
	Expect(json.Unmarshal([]byte(list(Text(n.conf()))), &held)).To(Succeed())
	Expect(held).To(ConsistOf(HaveField("Value", addr+" of default"), HaveField("Value", HaveSuffix(" of shop"))))
	Expect(held[0]).To(And(HaveField("Plugin", "cluster-local"), HaveField("Network", "net"),
		HaveField("ContainerID", "one"), HaveField("Kept", BeARegularFile())))
	Expect(s.requests()).To(BeEmpty())
	s.set(func(http.ResponseWriter, *http.Request, func()) bool { panic(http.ErrAbortHandler) })
	n.withTimeout(300*time.Millisecond).fails(11, "DEL", "one")
	Expect(list(Text(n.conf()))).To(ContainSubstring(addr), "DEL still has to release it")
	n.network = "other"
	Expect(list(Text(n.conf()))).To(Equal("[]\n"))
})

var _ = Describe("STATUS", Label("cluster-status"), func() {
	It("contacts the API server only if configured", func() {
		s, n := newNode()
		n.succeeds("STATUS", "")
		Expect(s.requests()).To(BeEmpty())
		s.Close()
		n.limit = 300 * time.Millisecond
		n.succeeds("STATUS", "")
		warned := n.withKeys(Object{"statusOnStoreDown": "warn"}).call("STATUS", "")
		Expect(warned.Code).To(BeZero())
		Expect(warned.Stderr).To(ContainSubstring("cannot reach the leases"))
		n.withKeys(Object{"statusOnStoreDown": "fail"}).fails(cni.CodeUnavailable, "STATUS", "")
		n.limit = nstest.Patience(20 * time.Second)
		Expect(os.WriteFile("/etc/ssl/hostname", []byte("no node\n"), 0o600)).To(Succeed())
		Expect(unix.Mount("/etc/ssl/hostname", "/etc/hostname", "", unix.MS_BIND, "")).To(Succeed())
		DeferCleanup(unix.Unmount, "/etc/hostname", 0)
		Expect(n.withKeys(Object{"node": ""}).fails(cni.CodeUnavailable, "STATUS", "")).To(HavePrefix("ipam.node: "))
		n.kubeconfig = "/etc/nowhere"
		Eventually(func() time.Duration { // one that is tried again takes a second each time, a busy machine not
			began := time.Now()
			Expect(n.fails(cni.CodeUnavailable, "STATUS", "")).To(ContainSubstring("/etc/nowhere"))
			return time.Since(began)
		}).Should(BeNumerically("<", time.Second), "it is not tried again")
	})
})

var _ = Describe("leases of nodes that are deleted", Label("cluster-reclaim"), func() {
	var s *server
	var n node
	BeforeEach(func() {
		s = newServer()
		s.skew = 300 * 24 * time.Hour // its clock alone counts
		n = s.node("node-a", ranges8)
		for i, holder := range []string{"gone", "node-b", "node-b", "node-b"} {
			s.addLease("default", fmt.Sprint("10.30.0.", i+2), holder, time.Hour)
		}
		s.addLease("default", "10.30.0.6", "joining", time.Minute)
	})

	It("are reclaimed if a set is full and they are older than ten minutes", func() {
		a := n.call("ADD", "one")
		Expect(addressesOf(a.Added())).To(Equal([]string{"10.30.0.2"}))
		Expect(a.Stderr).To(ContainSubstring(`reclaimed default.10.30.0.2 from node "gone"`))
		Expect(n.fails(cni.CodeTryAgain, "ADD", "two")).To(ContainSubstring("5 of its 6 are held, 0 belong"))
	})

	It("are not reclaimed if the configuration or the server prevents it", func() {
		Expect(n.withKeys(Object{"reclaim": "never"}).fails(cni.CodeTryAgain, "ADD", "one")).To(
			ContainSubstring(`"reclaim" is "never"`))
		s.set(failFirst(1, "DELETE", func(w http.ResponseWriter, _ *http.Request, _ func()) {
			refuse(w, http.StatusForbidden, "Forbidden", "", "the policy denies it")
		}))
		Expect(n.fails(cni.CodeTryAgain, "ADD", "one")).To(And(ContainSubstring("1 belong to deleted nodes"),
			ContainSubstring("the policy denies it")))
		Expect(s.leaseNames()).To(HaveLen(5))
	})

	It("never include the node's own leases", func() {
		n.name = "node-b"
		p := place{space: "default", node: "node-b", dataDir: n.dataDir}
		Expect(p.setMark(context.Background(), nodeMarkFile(p.node), nstest.Must(sysctl.BootID()))).To(Succeed())
		delete(s.nodes, "node-b")
		Expect(n.add("one")).To(Equal("10.30.0.2"))
		n.fails(cni.CodeTryAgain, "ADD", "two")
	})

	It("count as such when the node is out of service", func() {
		s.nodes["node-b"] = "node.kubernetes.io/out-of-service"
		s.nodes["gone"] = "node.kubernetes.io/unreachable:NoExecute"
		Expect(n.add("one")).To(BeElementOf("10.30.0.3", "10.30.0.4", "10.30.0.5"))
		Expect(s.leaseNames()).To(ContainElement("default.10.30.0.2"))
	})

	It("are found among more nodes than an ADD looks up", func() {
		n.ipam = Object{"ranges": json.RawMessage(`[[{"subnet": "10.31.0.0/24", "rangeEnd": "10.31.0.101"}]]`)}
		for i := range 100 { // the last by name is gone
			holder := fmt.Sprintf("node-%03d", i)
			if s.nodes[holder] = ""; i == 99 {
				delete(s.nodes, holder)
			}
			s.addLease("default", fmt.Sprint("10.31.0.", i+2), holder, time.Hour)
		}
		a := n.call("ADD", "one")
		for range 99 { // of which most would do
			if a.Code == 0 {
				break
			}
			Expect(a.Failed(cni.CodeTryAgain)).To(ContainSubstring("and 36 nodes were not looked up"))
			a = n.call("ADD", "one")
		}
		Expect(addressesOf(a.Added())).To(Equal([]string{"10.31.0.101"}))
		s.Lock()
		for i := range 100 {
			delete(s.nodes, fmt.Sprintf("node-%03d", i))
		}
		s.Unlock()
		var out bytes.Buffer
		env := skel.Env{Args: []string{"reclaim", "--kubeconfig", n.kubeconfig}, Stdout: &out, Stderr: &out}
		Expect(skel.Run(context.Background(), Plugin(), env)).To(BeZero(), out.String())
		Expect(out.String()).To(ContainSubstring("100 of 105 leases"))
	})

	It("are listed and released by cluster-local reclaim", func() {
		reclaim := func(args ...string) string {
			var out, errs bytes.Buffer
			env := skel.Env{Args: append([]string{"reclaim", "--kubeconfig", n.kubeconfig}, args...), Stdout: &out,
				Stderr: &errs}
			Expect(skel.Run(context.Background(), Plugin(), env)).To(BeZero(), errs.String())
			return out.String()
		}
		Expect(reclaim()).To(And(ContainSubstring(`default.10.30.0.2	node "gone"`),
			ContainSubstring("1 of 5 leases")))
		Expect(s.leaseNames()).To(HaveLen(5))
		Expect(reclaim("--yes")).To(ContainSubstring("were released"))
		Expect(s.leaseNames()).To(HaveLen(4))
		Expect(reclaim("--space", "other", "--yes")).To(ContainSubstring("0 of 0 leases"))
	})

	DescribeTable("refuse an unexpected argument", func(command string) {
		var errs bytes.Buffer
		env := skel.Env{Args: []string{command, "--kubeconfig", n.kubeconfig, "other", "--yes"}, Stderr: &errs}
		Expect(skel.Run(context.Background(), Plugin(), env)).To(Equal(2))
		Expect(errs.String()).To(Equal("cluster-local " + command + ": unexpected argument \"other\"\n"))
		Expect(s.leaseNames()).To(HaveLen(5))
	}, Entry("reclaim", "reclaim"), Entry("import", "import"))
})

var _ = Describe("the program", Label("cluster-program"), func() {
	It("leaves nothing when it is killed before or after any request", func() {
		s := newServer()
		n := s.node("node-a", `[[{"subnet": "10.30.0.0/24"}], [{"subnet": "2001:db8::/64"}]]`)
		// The third POST comes from a second process.
		for request := range 2 {
			for _, isAfter := range []bool{false, true} {
				cmd, _ := n.exec("ADD", "one")
				pid := make(chan *os.Process, 1)
				count := 0
				s.set(func(_ http.ResponseWriter, _ *http.Request, serve func()) bool {
					if count++; count != request+1 {
						return false
					}
					if isAfter {
						serve()
					}
					p := <-pid
					_ = p.Kill()
					_, _ = p.Wait()
					panic(http.ErrAbortHandler)
				})
				Expect(cmd.Start()).To(Succeed())
				pid <- cmd.Process
				_ = cmd.Wait()
				s.set(nil)
				at := fmt.Sprint("request ", request, ", after it: ", isAfter)
				Expect(s.leaseNames()).To(HaveLen(request+map[bool]int{true: 1}[isAfter]), at)
				n.succeeds("DEL", "one")
				Expect(s.leaseNames()).To(BeEmpty(), at)
			}
		}
	})

	It("gives no address twice to a hundred callers, who take all", func() {
		s := newServer()
		a := s.node("node-a", `[[{"subnet": "10.30.0.0/25", "rangeStart": "10.30.0.2", "rangeEnd": "10.30.0.101"}]]`)
		nodes := []node{a, a}
		nodes[1].name, nodes[1].dataDir = "node-b", GinkgoT().TempDir()
		var group sync.WaitGroup
		outs := make([]*bytes.Buffer, 100)
		for i := range outs {
			cmd, out := nodes[i%2].exec("ADD", fmt.Sprint("c", i))
			outs[i] = out
			group.Go(func() { _ = cmd.Run() })
		}
		group.Wait()
		seen := map[string]bool{}
		for _, out := range outs {
			for _, addr := range addressesOf(Answer{Stdout: out.String()}.Added()) {
				seen[addr] = true
			}
		}
		Expect(seen).To(HaveLen(100))
		Expect(s.leaseNames()).To(HaveLen(100))
	})
})
