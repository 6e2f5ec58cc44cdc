// Package kube_test runs cluster-local against an API server and etcd, which scripts/test-cluster.sh builds and finds.
package kube_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
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

// authority signs the certificates of kubelets.
type authority struct {
	file string // has its own certificate
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(file string) authority {
	GinkgoHelper()
	a := authority{file: file, key: nstest.Must(ecdsaKey())}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubelets"}, IsCA: true,
		BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	Expect(os.WriteFile(file, a.sign(a.cert, a.key), 0o600)).To(Succeed())
	return a
}

func (a authority) sign(cert *x509.Certificate, key crypto.Signer) []byte {
	GinkgoHelper()
	der := nstest.Must(x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key))
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// certify makes what a kubeconfig says of the user who is this node's kubelet.
func (a authority) certify(node string, key crypto.Signer) string {
	GinkgoHelper()
	cert := a.sign(&x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: a.cert.NotAfter,
		Subject:     pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, key)
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: nstest.Must(x509.MarshalPKCS8PrivateKey(key))})
	text := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("client-certificate-data: %s, client-key-data: %s", text(cert), text(secret))
}

func ecdsaKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }
func rsaKey() (crypto.Signer, error)   { return rsa.GenerateKey(rand.Reader, 2048) }

// killAt runs the command until its system call of this number, from 1, counting those of all threads, and kills it
// before the kernel carries that out. It returns false when the program ended before.
func killAt(cmd *exec.Cmd, number int) (isKilled bool) {
	GinkgoHelper()
	const (
		syscallStop = syscall.SIGTRAP | 0x80
		exitKill    = 0x100000   // PTRACE_O_EXITKILL
		noThread    = 0x20000000 // __WNOTHREAD: children of other threads are others' to wait for
	)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	cmd.Stdout = nil // nobody copies: Wait is not called
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the tracer is a thread, and its children are waited for by it alone
		done <- func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			var ws syscall.WaitStatus
			pid := cmd.Process.Pid
			if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
				return err
			}
			err := syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACESYSGOOD|syscall.PTRACE_O_TRACECLONE|
				exitKill)
			if err != nil {
				return err
			}
			inside := map[int]bool{} // threads in a system call
			for at := pid; ; {
				_ = syscall.PtraceSyscall(at, pass(ws))
				if at, err = syscall.Wait4(-1, &ws, syscall.WALL|noThread, nil); err != nil {
					return fmt.Errorf("wait: %w", err)
				}
				switch {
				case (ws.Exited() || ws.Signaled()) && at == pid:
					return nil
				case ws.Exited() || ws.Signaled():
					delete(inside, at)
				case ws.Stopped() && ws.StopSignal() == syscallStop:
					if inside[at] = !inside[at]; inside[at] {
						if number--; number == 0 {
							isKilled = true
							_ = syscall.Kill(pid, syscall.SIGKILL)
						}
					}
				}
			}
		}()
	}()
	Expect(<-done).To(Succeed())
	return isKilled
}

// pass is the signal that a thread was stopped for, unless ptrace made the stop.
func pass(ws syscall.WaitStatus) int {
	if s := ws.StopSignal(); ws.Stopped() && s != syscall.SIGTRAP && s != syscall.SIGTRAP|0x80 && s != syscall.SIGSTOP {
		return int(s)
	}
	return 0
}

var _ = Describe("the program, killed at any system call", Ordered, Label("cluster-kill"), func() {
	BeforeAll(start)

	DescribeTable("leaves nothing after DEL:", func(command string) {
		n := newNode("node-a", object{"ranges": json.RawMessage(dual)})
		tried := 0
		for number, isKilled := 1, true; isKilled; number += 3 {
			if command == "DEL" {
				Expect(n.call("ADD", "one", nil).IPs).To(HaveLen(2))
			}
			isKilled = killAt(n.command(command, "one", nil), number)
			n.succeeds("DEL", "one", nil)
			tried++
		}
		AddReportEntry("kills", tried-1)
		Expect(tried).To(BeNumerically(">", 50))
		Eventually(func() []string { // without requests that were carried out after DEL
			n.succeeds("DEL", "none", nil)
			return there.leases()
		}).WithTimeout(nstest.Patience(time.Minute)).Should(BeEmpty())
	}, Entry("ADD", "ADD"), Entry("DEL", "DEL"))
})

// proxied is a node between which and the API server something goes wrong with each request.
func proxied(name string, fault func(w http.ResponseWriter, r *http.Request, serve http.Handler)) node {
	GinkgoHelper()
	proxy := httputil.NewSingleHostReverseProxy(nstest.Must(url.Parse(there.url)))
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	proxy.ErrorLog = nil
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fault(w, r, proxy) }))
	DeferCleanup(s.CloseClientConnections)
	n := newNode(name, object{"ranges": json.RawMessage(dual)})
	text := string(nstest.Must(os.ReadFile(n.kubeconfig)))
	text = strings.ReplaceAll(text, there.url, s.URL)
	text = strings.ReplaceAll(text, fmt.Sprintf("certificate-authority: %q", there.dir+"/certs/apiserver.crt"),
		"insecure-skip-tls-verify: true")
	Expect(os.WriteFile(n.kubeconfig, []byte(text), 0o600)).To(Succeed())
	return n
}

var _ = Describe("a proxy before the API server", Ordered, Label("cluster-proxy"), func() {
	BeforeAll(start)

	It("that swallows every third answer neither gives an address twice nor leaves one", func() {
		var count atomic.Int64
		swallow := func(_ http.ResponseWriter, r *http.Request, serve http.Handler) {
			serve.ServeHTTP(httptest.NewRecorder(), r) // carried out, and nobody hears of it
			panic(http.ErrAbortHandler)
		}
		fault := func(w http.ResponseWriter, r *http.Request, serve http.Handler) {
			if count.Add(1)%3 == 0 {
				swallow(w, r, serve)
			}
			serve.ServeHTTP(w, r)
		}
		nodes := [2]node{proxied("node-a", fault), proxied("node-b", fault)}
		seen := map[string]bool{}
		for _, a := range all(nodes, "ADD", 30) {
			Expect(a.IPs).To(HaveLen(2), a.Text)
			for _, ip := range a.IPs {
				Expect(seen).NotTo(HaveKey(ip.Address))
				seen[ip.Address] = true
			}
		}
		Expect(there.leases()).To(HaveLen(60))
		for _, a := range all(nodes, "DEL", 30) {
			Expect(a.Text).To(BeEmpty())
		}
		Expect(there.leases()).To(BeEmpty())
	})

	It("that carries a POST out seconds after DEL leaves nothing once the node has made another call", func() {
		held, released, late := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var isFirst atomic.Bool
		n := proxied("node-c", func(w http.ResponseWriter, r *http.Request, serve http.Handler) {
			if r.Method == "POST" && isFirst.CompareAndSwap(false, true) {
				body := nstest.Must(io.ReadAll(r.Body)) // now: the connection ends
				again := r.Clone(context.WithoutCancel(r.Context()))
				again.Body = io.NopCloser(bytes.NewReader(body))
				close(held)
				<-released
				serve.ServeHTTP(httptest.NewRecorder(), again)
				close(late)
				return
			}
			serve.ServeHTTP(w, r)
		})
		cmd, wait := n.start("ADD", "one", nil)
		Eventually(held).WithTimeout(nstest.Patience(time.Minute)).Should(BeClosed())
		Expect(cmd.Process.Kill()).To(Succeed())
		wait()
		n.succeeds("DEL", "one", nil)
		Expect(there.leases()).To(BeEmpty())
		close(released)
		Eventually(late).WithTimeout(nstest.Patience(time.Minute)).Should(BeClosed())
		Expect(there.leases()).To(HaveLen(1), "the request was carried out after DEL")
		n.succeeds("DEL", "other", nil)
		Expect(there.leases()).To(BeEmpty())
	})
})

// policy is what is evaluated of deploy/cluster-local/policy.yaml.
type policy struct {
	Spec struct {
		MatchConditions []struct{ Expression string }
		Variables       []struct{ Name, Expression string }
		Validations     []struct{ Expression, MessageExpression string }
	}
}

// decide does as the API server does with the policy and a request.
func (p policy) decide(request, oldObject, new object) (denied string) {
	GinkgoHelper()
	env := nstest.Must(cel.NewEnv(cel.Variable("request", cel.DynType), cel.Variable("object", cel.DynType),
		cel.Variable("oldObject", cel.DynType), cel.Variable("variables", cel.DynType)))
	variables := object{}
	value := func(expression string) any {
		GinkgoHelper()
		tree, issues := env.Compile(expression)
		Expect(issues.Err()).NotTo(HaveOccurred(), expression)
		out, _, err := nstest.Must(env.Program(tree)).Eval(object{"request": request, "oldObject": oldObject,
			"object": new, "variables": variables})
		Expect(err).NotTo(HaveOccurred(), expression)
		return out.Value()
	}
	for _, c := range p.Spec.MatchConditions {
		if value(c.Expression) == false {
			return ""
		}
	}
	for _, v := range p.Spec.Variables {
		variables[v.Name] = value(v.Expression)
	}
	for _, v := range p.Spec.Validations {
		if value(v.Expression) != true {
			return value(v.MessageExpression).(string)
		}
	}
	return ""
}

var _ = DescribeTable("the policy", Label("cluster-policy"), func(user object, operation, node, want string) {
	manifest, _, _ := strings.Cut(string(nstest.Must(os.ReadFile("../../deploy/cluster-local/policy.yaml"))), "\n---\n")
	var p policy
	Expect(yaml.Unmarshal([]byte(manifest), &p)).To(Succeed())
	Expect(p.Spec.Validations).To(HaveLen(1))
	lease := object{"spec": object{"node": node}}
	if operation == "DELETE" {
		Expect(p.decide(object{"operation": operation, "userInfo": user}, lease, nil)).To(Equal(want))
		return
	}
	Expect(p.decide(object{"operation": operation, "userInfo": user}, nil, lease)).To(Equal(want))
},
	Entry("has a kubelet make its own", kubelet, "CREATE", "node-a", ""),
	Entry("has a kubelet delete its own", kubelet, "DELETE", "node-a", ""),
	Entry("has a kubelet make no other's", kubelet, "CREATE", "node-b",
		"system:node:node-a cannot create or delete leases of node node-b"),
	Entry("has a kubelet delete no other's", kubelet, "DELETE", "node-b",
		"system:node:node-a cannot create or delete leases of node node-b"),
	Entry("has a token of a node's pod make its own", token, "CREATE", "node-a", ""),
	Entry("has a token of a node's pod delete no other's", token, "DELETE", "node-b",
		"system:node:node-a cannot create or delete leases of node node-b"),
	Entry("has a token of no pod make none", object{"username": token["username"], "groups": token["groups"]}, "CREATE",
		"node-a", "a token without a node cannot create or delete leases of node node-a"),
	Entry("says nothing of a CronJob's token", object{"username": "system:serviceaccount:kube-system:reclaim",
		"groups": token["groups"], "extra": token["extra"]}, "DELETE", "node-b", ""),
	Entry("says nothing of people", object{"username": "admin", "groups": []string{"system:masters"}}, "DELETE",
		"node-b", ""))

var (
	kubelet = object{"username": "system:node:node-a", "groups": []string{"system:nodes", "system:authenticated"}}
	token   = object{"username": "system:serviceaccount:kube-system:hawser-cluster-local",
		"groups": []string{"system:serviceaccounts"},
		"extra":  object{"authentication.kubernetes.io/node-name": []string{"node-a"}}}
)
