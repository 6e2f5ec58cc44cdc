package clusterlocal

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// server implements the part of a Kubernetes API server that leases need: objects are created by name, deleted with a
// precondition, and listed in pages by fields.
type server struct {
	*httptest.Server
	sync.Mutex
	leases map[string]object
	pools  map[string]pool   // of whereabouts
	nodes  map[string]string // to the key of a taint
	asked  []string          // method and path of each request, but of those for nodes
	looked []string          // paths of the latter, which no fault changes
	serial int
	page   int // at most, of a list; 0 = as asked
	most   int // leases in an answer
	skew   time.Duration

	// fault serves a request in place of the server, or returns false. serve is the server's own handler.
	fault func(w http.ResponseWriter, r *http.Request, serve func()) bool
}

// loopback brings lo up, which is down in a new namespace.
func loopback() error {
	lo, err := net.InterfaceByName("lo")
	if err == nil && lo.Flags&net.FlagUp == 0 {
		err = exec.Command("ip", "link", "set", "lo", "up").Run()
	}
	return err
}

func newServer() *server {
	GinkgoHelper()
	Expect(loopback()).To(Succeed())
	Expect(ownDirs()).To(Succeed())
	s := startServer()
	DeferCleanup(s.CloseClientConnections)
	return s
}

func startServer() *server {
	s := &server{leases: map[string]object{}, pools: map[string]pool{},
		nodes: map[string]string{"node-a": "", "node-b": ""}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.handle))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	return s
}

// kubeconfig writes a kubeconfig for a node's token, with more keys of the user.
func (s *server) kubeconfig(token string) string {
	GinkgoHelper()
	return hostFile("/var/lib/kubelet", s.config(token))
}

// hostFile writes a file in a directory in which no container can write.
func hostFile(dir, text string) string {
	GinkgoHelper()
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	f := nstest.Must(os.CreateTemp(dir, "file"))
	defer f.Close()
	Expect(f.WriteString(text)).Error().NotTo(HaveOccurred())
	return f.Name()
}

// ownDirs mounts empty file systems over the directories with the host's files.
func ownDirs() error {
	for _, dir := range []string{"/var/lib", "/etc/ssl"} {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return err
		}
		if st.Type == unix.TMPFS_MAGIC {
			continue // of an earlier call, or a fuzz worker's
		}
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) config(token string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: here
clusters:
- name: other
  cluster: {server: "https://api.example:6443"}
- name: c
  cluster: {server: %q, certificate-authority-data: %s}
users:
- name: u
  user: {token: %s}
contexts:
- name: here
  context: {cluster: c, user: u, namespace: default}
`, s.URL, base64.StdEncoding.EncodeToString(ca), token)
}

func (s *server) handle(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	fault := s.fault
	if strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		s.looked, fault = append(s.looked, r.URL.Path), nil
	} else {
		s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	}
	s.Unlock()
	w.Header().Set("Date", time.Now().Add(s.skew).UTC().Format(http.TimeFormat))
	serve := func() { s.serve(w, r) }
	if fault == nil || !fault(w, r, serve) {
		serve()
	}
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	defer s.Unlock()
	if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer node-") {
		refuse(w, http.StatusUnauthorized, "Unauthorized", "", "Unauthorized")
		return
	}
	name, isNode := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/")
	if isNode {
		s.serveNode(w, name)
		return
	}
	if rest, isPools := strings.CutPrefix(r.URL.Path, poolsPath); isPools {
		s.servePools(w, r, strings.TrimPrefix(rest, "/namespaces/kube-system"))
		return
	}
	rest, isOurs := strings.CutPrefix(r.URL.Path, "/apis/ipam.hawser.dev/v1/addresses")
	name = strings.TrimPrefix(rest, "/")
	o, isThere := s.leases[name]
	switch {
	case !isOurs:
		http.NotFound(w, r)
	case r.Method == "POST" && name == "":
		s.create(w, r)
	case r.Method == "GET" && name == "":
		s.list(w, r)
	case !isThere:
		refuse(w, http.StatusNotFound, "NotFound", name, fmt.Sprintf("addresses.ipam.hawser.dev %q not found", name))
	case r.Method == "GET":
		reply(w, http.StatusOK, o)
	case r.Method == "DELETE":
		var options struct{ Preconditions struct{ UID string } }
		if json.NewDecoder(r.Body).Decode(&options) != nil || options.Preconditions.UID != o.Metadata.UID {
			refuse(w, http.StatusConflict, "Conflict", name, "the UID in the precondition does not match")
			return
		}
		delete(s.leases, name)
		reply(w, http.StatusOK, map[string]any{"kind": "Status", "status": "Success"})
	}
}

func (s *server) create(w http.ResponseWriter, r *http.Request) {
	var o object
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Kind != kind || o.APIVersion != apiVersion {
		refuse(w, http.StatusBadRequest, "BadRequest", "", fmt.Sprint(err, o.Kind))
		return
	}
	if _, taken := s.leases[o.Metadata.Name]; taken {
		refuse(w, http.StatusConflict, "AlreadyExists", o.Metadata.Name, o.Metadata.Name+" already exists")
		return
	}
	s.put(&o)
	reply(w, http.StatusCreated, o)
}

// put stores a new object.
func (s *server) put(o *object) {
	s.serial++
	o.APIVersion, o.Kind, o.Metadata.UID = apiVersion, kind, fmt.Sprint("uid-", s.serial)
	if o.Metadata.Created.IsZero() {
		o.Metadata.Created = time.Now().Add(s.skew).UTC().Truncate(time.Second)
	}
	s.leases[o.Metadata.Name] = *o
}

func (s *server) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	matches := func(o object) bool {
		for _, term := range strings.Split(query.Get("fieldSelector"), ",") {
			key, value, _ := strings.Cut(term, "=")
			has := map[string]string{"spec.space": o.Spec.Space, "spec.node": o.Spec.Node}
			if has[key] != value {
				return false
			}
		}
		return true
	}
	limit, _ := strconv.Atoi(query.Get("limit"))
	if s.page > 0 {
		limit = s.page
	}
	if query.Get("resourceVersion") == "0" { // from the watch cache, which ignores limits (kubernetes#96182)
		limit = 0
	}
	items, next := []object{}, ""
	for _, name := range slices.Sorted(maps.Keys(s.leases)) {
		if name <= query.Get("continue") || !matches(s.leases[name]) {
			continue
		}
		if limit > 0 && len(items) == limit {
			next = items[len(items)-1].Metadata.Name
			break
		}
		items = append(items, s.leases[name])
	}
	s.most = max(s.most, len(items))
	reply(w, http.StatusOK, map[string]any{"kind": "AddressList", "metadata": map[string]string{"continue": next},
		"items": items})
}

func (s *server) serveNode(w http.ResponseWriter, name string) {
	taint, isThere := s.nodes[name]
	if !isThere {
		refuse(w, http.StatusNotFound, "NotFound", name, fmt.Sprintf("nodes %q not found", name))
		return
	}
	reply(w, http.StatusOK, map[string]any{"kind": "Node", "metadata": map[string]string{"name": name},
		"spec": map[string]any{"taints": []any{map[string]string{"key": taint}}}})
}

// servePools implements the part of JSON patches against a version that the guard needs.
func (s *server) servePools(w http.ResponseWriter, r *http.Request, rest string) {
	name := strings.TrimPrefix(rest, "/ippools/")
	var p pool
	var patch []struct {
		Op, Path string
		Value    json.RawMessage
	}
	switch {
	case s.pools == nil:
		http.NotFound(w, r)
	case r.Method == "GET" && rest == "/ippools":
		names := slices.Sorted(maps.Keys(s.pools))
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		to, next := len(names), ""
		if s.page > 0 && from+s.page < len(names) {
			to = from + s.page
			next = fmt.Sprint(to)
		}
		items := []pool{}
		for _, name := range names[from:to] {
			items = append(items, s.pools[name])
		}
		reply(w, http.StatusOK, map[string]any{"kind": "IPPoolList", "metadata": map[string]string{"continue": next},
			"items": items})
	case r.Method == "POST":
		Expect(json.NewDecoder(r.Body).Decode(&p)).To(Succeed())
		if _, isThere := s.pools[p.Metadata.Name]; isThere {
			refuse(w, http.StatusConflict, "AlreadyExists", p.Metadata.Name, "already exists")
			return
		}
		s.putPool(p.Metadata.Name, p.Spec.Range, p.Spec.Allocations)
		reply(w, http.StatusCreated, p)
	case r.Method == "PATCH" && json.NewDecoder(r.Body).Decode(&patch) == nil:
		p = s.pools[name]
		offset := strings.TrimPrefix(patch[1].Path, "/spec/allocations/")
		if string(patch[0].Value) != strconv.Quote(p.Metadata.ResourceVersion) {
			refuse(w, http.StatusUnprocessableEntity, "Invalid", name, "testing path failed")
			return
		}
		var e poolEntry
		switch delete(p.Spec.Allocations, offset); {
		case patch[1].Path == "/spec/allocations":
			p.Spec.Allocations = nil
			Expect(json.Unmarshal(patch[1].Value, &p.Spec.Allocations)).To(Succeed())
		case patch[1].Op == "add":
			Expect(json.Unmarshal(patch[1].Value, &e)).To(Succeed())
			p.Spec.Allocations[offset] = e
		}
		s.putPool(name, p.Spec.Range, p.Spec.Allocations)
		reply(w, http.StatusOK, s.pools[name])
	}
}

// putPool creates a pool or its next version.
func (s *server) putPool(name, subnet string, allocations map[string]poolEntry) {
	var p pool
	s.serial++
	p.Kind = "IPPool"
	p.Metadata.Name, p.Metadata.Namespace, p.Metadata.ResourceVersion = name, "kube-system", fmt.Sprint(s.serial)
	p.Spec.Range, p.Spec.Allocations = subnet, maps.Clone(allocations)
	s.pools[name] = p
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, code int, reason, name, message string) {
	reply(w, code, map[string]any{"kind": "Status", "code": code, "reason": reason, "message": message,
		"details": map[string]string{"name": name}})
}

// set changes the server's behavior from now on.
func (s *server) set(fault func(w http.ResponseWriter, r *http.Request, serve func()) bool) {
	s.Lock()
	defer s.Unlock()
	s.fault = fault
}

// leaseNames returns the names of the leases.
func (s *server) leaseNames() []string {
	s.Lock()
	defer s.Unlock()
	return slices.Sorted(maps.Keys(s.leases))
}

// addLease creates a lease of another node with the given age.
func (s *server) addLease(space, addr, node string, age time.Duration) {
	s.Lock()
	defer s.Unlock()
	name := space + "." + strings.ReplaceAll(addr, ":", "-")
	s.put(&object{Metadata: metadata{Name: name, Created: time.Now().Add(s.skew - age).UTC().Truncate(time.Second)},
		Spec: lease{Space: space, Node: node, Network: "net", Container: "theirs", IfName: "eth0", Nonce: "theirs"}})
}

// requests returns the methods of the requests since its last call.
func (s *server) requests() (methods string) {
	s.Lock()
	defer s.Unlock()
	for _, a := range s.asked {
		method, _, _ := strings.Cut(a, " ")
		methods += method + " "
	}
	s.asked = nil
	return strings.TrimSpace(methods)
}

// failFirst applies a fault to the first requests with a method.
func failFirst(n int, method string, fault func(w http.ResponseWriter, r *http.Request, serve func())) func(
	http.ResponseWriter, *http.Request, func()) bool {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request, serve func()) bool {
		mu.Lock()
		isOne := n > 0 && r.Method == method
		if isOne {
			n--
		}
		mu.Unlock()
		if isOne {
			fault(w, r, serve)
		}
		return isOne
	}
}

// The faults: either the request is not carried out, or its answer is lost.
func drop(http.ResponseWriter, *http.Request, func()) { panic(http.ErrAbortHandler) }

func swallow(_ http.ResponseWriter, _ *http.Request, serve func()) {
	serve()
	panic(http.ErrAbortHandler)
}

func says(code int, text string) func(http.ResponseWriter, *http.Request, func()) {
	return func(w http.ResponseWriter, _ *http.Request, _ func()) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(text))
	}
}
