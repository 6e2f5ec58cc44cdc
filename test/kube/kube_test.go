// Package kube_test runs cluster-local against an API server and etcd, which scripts/test-cluster.sh builds and finds.
package kube_test

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestKube(t *testing.T) { nstest.RunSpecs(t, "test/kube") }

type object = map[string]any

const (
	loopback  = "127.0.0.1:"
	addresses = "/apis/ipam.hawser.dev/v1/addresses"
	kubelets  = "/var/lib/kubelet" // where a kubeconfig may be
)

// cluster is an API server with its etcd, on the loopback address of the specs' own namespace.
type cluster struct {
	dir      string
	etcd     *exec.Cmd
	server   *exec.Cmd
	etcdPort string
	url      string
	client   http.Client
	kubelets authority
}

var there *cluster

// start starts it, with the objects that leases are.
func start() {
	GinkgoHelper()
	for _, name := range []string{"HAWSER_APISERVER", "HAWSER_ETCD"} {
		if os.Getenv(name) == "" {
			Skip(name + " is not set: make test-cluster sets it")
		}
	}
	Expect(exec.Command("ip", "link", "set", "lo", "up").Run()).To(Succeed())
	Expect(exec.Command("mount", "-t", "tmpfs", "none", filepath.Dir(kubelets)).Run()).To(Succeed())
	Expect(os.Mkdir(kubelets, 0o755)).To(Succeed())
	there = &cluster{dir: GinkgoT().TempDir(), client: http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	there.etcdPort = port()
	there.startEtcd()
	DeferCleanup(func() { _, _ = there.etcd.Process.Kill(), there.etcd.Wait() })
	there.kubelets = newAuthority(there.dir + "/clients.pem")
	at := port()
	there.url = "https://" + loopback + at
	server := exec.Command(os.Getenv("HAWSER_APISERVER"), "-etcd", "http://"+loopback+there.etcdPort, "-port", at,
		"-certs", there.dir+"/certs", "-clients", there.kubelets.file)
	server.Stdout, server.Stderr = GinkgoWriter, GinkgoWriter
	began := time.Now()
	Expect(server.Start()).To(Succeed())
	there.server = server
	DeferCleanup(func() { _, _ = server.Process.Kill(), server.Wait() })
	Eventually(func() error { _, err := there.ask("GET", "/readyz", nil); return err }).
		WithTimeout(nstest.Patience(time.Minute)).Should(Succeed())
	there.apply("crd.yaml", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
	Eventually(func() error { _, err := there.ask("GET", addresses, nil); return err }).
		WithTimeout(nstest.Patience(time.Minute)).Should(Succeed())
	AddReportEntry("ready after", time.Since(began))
}

// port is one that nobody listens on.
func port() string {
	GinkgoHelper()
	l := nstest.Must(net.Listen("tcp", loopback+"0"))
	defer l.Close()
	_, at, _ := net.SplitHostPort(l.Addr().String())
	return at
}

func (c *cluster) startEtcd() {
	GinkgoHelper()
	url := "http://" + loopback + c.etcdPort
	c.etcd = exec.Command(os.Getenv("HAWSER_ETCD"), "--data-dir", c.dir+"/etcd", "--listen-client-urls", url,
		"--advertise-client-urls", url, "--listen-peer-urls", "http://"+loopback+"0", "--logger", "zap")
	c.etcd.Stdout, c.etcd.Stderr = GinkgoWriter, GinkgoWriter
	Expect(c.etcd.Start()).To(Succeed())
}

// ask sends a request as somebody who may do all.
func (c *cluster) ask(method, path string, body any) (out object, err error) {
	return c.send(method, path, "application/json", body)
}

// send is ask with a body of a type of its own.
func (c *cluster) send(method, path, contentType string, body any) (out object, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequest(method, c.url+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer admin")
	r.Header.Set("Content-Type", contentType)
	resp, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		return nil, fmt.Errorf("%d: %s", resp.StatusCode, data)
	}
	_ = json.Unmarshal(data, &out) // /readyz is text
	return out, err
}

// apply makes the object of a manifest of deploy/cluster-local.
func (c *cluster) apply(file, path string) {
	GinkgoHelper()
	var o object
	Expect(yaml.UnmarshalStrict(nstest.Must(os.ReadFile("../../deploy/cluster-local/"+file)), &o)).To(Succeed())
	Expect(c.ask("POST", path, o)).Error().NotTo(HaveOccurred())
}

// leases are the names of all.
func (c *cluster) leases() (names []string) {
	GinkgoHelper()
	list := nstest.Must(c.ask("GET", addresses, nil))
	for _, item := range list["items"].([]any) {
		names = append(names, item.(object)["metadata"].(object)["name"].(string))
	}
	return names
}

// node is a node with the configuration of one network.
type node struct {
	name, dataDir, kubeconfig string
	ipam                      object
}

func newNode(name string, ipam object) node {
	GinkgoHelper()
	n := node{name: name, dataDir: GinkgoT().TempDir(), ipam: ipam}
	n.kubeconfig = filepath.Join(kubelets, "kubeconfig-"+name)
	// The server has no nodes: ADD has asked already.
	known := filepath.Join(n.dataDir, "default", cni.Digest(name, 16)+".known")
	Expect(os.Mkdir(filepath.Dir(known), 0o700)).To(Succeed())
	Expect(os.WriteFile(known, []byte(nstest.Must(sysctl.BootID())), 0o600)).To(Succeed())
	n.writeKubeconfig("token: node-" + name)
	return n
}

// writeKubeconfig writes that of a user with these credentials.
func (n node) writeKubeconfig(user string) {
	GinkgoHelper()
	Expect(os.WriteFile(n.kubeconfig, fmt.Appendf(nil, `
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {%s}}]
`, there.url, there.dir+"/certs/apiserver.crt", user), 0o600)).To(Succeed())
}

type answer struct {
	IPs       []struct{ Address string }
	Code      int
	Msg, Text string
}

// start starts the program; the function waits for its answer.
func (n node) start(command, id string, more object) (*exec.Cmd, func() answer) {
	GinkgoHelper()
	var out bytes.Buffer
	cmd := n.command(command, id, more)
	cmd.Stdout = &out
	Expect(cmd.Start()).To(Succeed())
	return cmd, func() (a answer) {
		_ = cmd.Wait()
		_ = json.Unmarshal(out.Bytes(), &a)
		a.Text = out.String()
		return a
	}
}

func (n node) command(command, id string, more object) *exec.Cmd {
	GinkgoHelper()
	ipam := object{"type": "cluster-local", "node": n.name, "dataDir": n.dataDir, "kubeconfig": n.kubeconfig}
	for k, v := range n.ipam {
		ipam[k] = v
	}
	conf := object{"cniVersion": "1.1.0", "name": "lan", "type": "macvlan", "ipam": ipam}
	for k, v := range more {
		conf[k] = v
	}
	cmd := exec.Command(nstest.Build("cluster-local"))
	cmd.Stdin = bytes.NewReader(nstest.Must(json.Marshal(conf)))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=/x",
		"CNI_PATH=/x"}
	return cmd
}

func (n node) call(command, id string, more object) answer {
	GinkgoHelper()
	_, wait := n.start(command, id, more)
	return wait()
}

func (n node) succeeds(command, id string, more object) {
	GinkgoHelper()
	Expect(n.call(command, id, more).Text).To(BeEmpty())
}

// all runs a command for many containers at once, on two nodes in turn.
func all(nodes [2]node, command string, count int) []answer {
	GinkgoHelper()
	answers := make([]answer, count)
	var group sync.WaitGroup
	for i := range answers {
		_, wait := nodes[i%2].start(command, fmt.Sprint("c", i), nil)
		group.Go(func() { answers[i] = wait() })
	}
	group.Wait()
	return answers
}

const dual = `[[{"subnet": "10.30.0.0/24"}], [{"subnet": "2001:db8:30::/64"}]]`

var _ = Describe("cluster-local", Ordered, ContinueOnFailure, Label("cluster-real"), func() {
	BeforeAll(start)

	AfterEach(func() {
		for _, name := range there.leases() {
			_, _ = there.ask("DELETE", addresses+"/"+name, nil)
		}
	})

	It("serves every verb, and the server knows what a lease is", func() {
		n := newNode("node-a", object{"ranges": json.RawMessage(dual)})
		a := n.call("ADD", "one", nil)
		Expect(a.IPs).To(HaveLen(2), a.Text)
		Expect(there.leases()).To(HaveLen(2))
		n.succeeds("CHECK", "one", object{"prevResult": json.RawMessage(a.Text)})
		n.ipam["statusOnStoreDown"] = "fail"
		n.succeeds("STATUS", "", nil)
		Expect(n.call("ADD", "one", nil).Code).To(Equal(100))

		name := there.leases()[0]
		lease := nstest.Must(there.ask("GET", addresses+"/"+name, nil))
		lease["spec"].(object)["node"] = "node-b"
		Expect(there.ask("PUT", addresses+"/"+name, lease)).Error().To(MatchError(ContainSubstring("never changed")))
		lease["metadata"] = object{"name": "other.10.0.0.1"}
		Expect(there.ask("POST", addresses, lease)).Error().To(MatchError(ContainSubstring("begins with the space")))

		n.succeeds("DEL", "one", nil)
		Expect(there.leases()).To(BeEmpty())
	})

	DescribeTable("knows a kubelet by its certificate", func(newKey func() (crypto.Signer, error)) {
		n := newNode("node-a", object{"ranges": json.RawMessage(dual)})
		n.writeKubeconfig(there.kubelets.certify(n.name, nstest.Must(newKey())))
		a := n.call("ADD", "one", nil)
		Expect(a.IPs).To(HaveLen(2), a.Text)
		n.succeeds("DEL", "one", nil)
		Expect(there.leases()).To(BeEmpty())

		n.writeKubeconfig(newAuthority(there.dir+"/others.pem").certify(n.name, nstest.Must(newKey())))
		a = n.call("ADD", "one", nil)
		Expect(a.Code).To(Equal(5), a.Text)
		Expect(a.Msg).To(ContainSubstring("refuses the user"))
	}, Entry("ECDSA", ecdsaKey), Entry("RSA", rsaKey))

	It("finds by a list what a node without records holds, and nothing of others", func() {
		a, b := newNode("node-a", object{"ranges": json.RawMessage(dual)}), newNode("node-b", nil)
		b.ipam = a.ipam
		for _, n := range []node{a, b} {
			Expect(n.call("ADD", "one", nil).IPs).To(HaveLen(2))
		}
		Expect(os.RemoveAll(a.dataDir + "/default")).To(Succeed())
		a.succeeds("GC", "", object{"cni.dev/valid-attachments": []any{}})
		Expect(there.leases()).To(HaveLen(2))
		b.succeeds("CHECK", "one", nil)
	})

	It("gives a hundred processes at once a hundred addresses, none twice, and takes all back", func() {
		ipam := object{"ranges": json.RawMessage(
			`[[{"subnet": "10.30.0.0/25", "rangeStart": "10.30.0.2", "rangeEnd": "10.30.0.101"}]]`)}
		nodes := [2]node{newNode("node-a", ipam), newNode("node-b", ipam)}
		began := time.Now()
		seen := map[string]bool{}
		for _, a := range all(nodes, "ADD", 100) {
			Expect(a.IPs).To(HaveLen(1), a.Text)
			seen[a.IPs[0].Address] = true
		}
		AddReportEntry("a hundred ADDs", time.Since(began))
		Expect(seen).To(HaveLen(100))
		Expect(nodes[0].call("ADD", "more", nil).Msg).To(ContainSubstring("no IP addresses available"))
		for _, a := range all(nodes, "DEL", 100) {
			Expect(a.Text).To(BeEmpty())
		}
		Expect(there.leases()).To(BeEmpty())
	})

	It("has what it answered after etcd was killed, and leaves nothing after DEL", func() {
		ipam := object{"ranges": json.RawMessage(dual)}
		nodes := [2]node{newNode("node-a", ipam), newNode("node-b", ipam)}
		var answers []answer
		done := make(chan struct{})
		go func() {
			defer GinkgoRecover()
			defer close(done)
			answers = all(nodes, "ADD", 60)
		}()
		Eventually(func() int { return len(there.leases()) }).Should(BeNumerically(">", 10))
		Expect(there.etcd.Process.Kill()).To(Succeed())
		_ = there.etcd.Wait()
		there.startEtcd()
		Eventually(done).WithTimeout(nstest.Patience(2 * time.Minute)).Should(BeClosed())
		have := " " + strings.Join(there.leases(), " ") + " "
		served := 0
		for _, a := range answers {
			for _, ip := range a.IPs {
				if addr, _, _ := strings.Cut(ip.Address, "/"); !strings.Contains(addr, ":") {
					served++
					Expect(have).To(ContainSubstring(" default." + addr + " "))
				}
			}
		}
		AddReportEntry("served", served)
		Expect(served).To(BeNumerically(">", 10))
		for _, a := range all(nodes, "DEL", 60) {
			Expect(a.Text).To(BeEmpty())
		}
		Expect(there.leases()).To(BeEmpty())
	})
})
