package plugintest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

// Step is one plugin of a list, with the keys of its configuration.
type Step struct {
	Plugin string
	Keys   Object
}

// List has the plugins of a network, in their order.
type List []Step

// Usual returns the list of a typical node, for a backend or for the default one (""). Specs run it under load, under
// attack and on hostile hosts.
func Usual(backend string) List {
	masq, ports, filter := Object{}, Object{}, Object{}
	if backend != "" {
		masq, ports, filter = Object{"ipMasqBackend": backend}, Object{"backend": backend}, Object{"backend": backend}
	}
	return List{
		{"bridge", Merge(Object{"bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
			"ipam": HostLocal("10.88.0.0/24", "fd00:88::/64")}, masq)},
		{"portmap", Merge(Published(8080), ports)},
		{"firewall", Merge(Object{"ingressPolicy": "same-bridge"}, filter)},
		{"tuning", Object{"sysctl": Object{"net.ipv4.conf.IFNAME.arp_filter": "1"}}},
	}
}

// HostLocal returns the ipam key for host-local with one address from each of the subnets.
func HostLocal(subnets ...string) Object {
	var ranges []any
	for _, s := range subnets {
		ranges = append(ranges, []any{Object{"subnet": s}})
	}
	return Object{"type": "host-local", "ranges": ranges}
}

// Published returns the keys of portmap that forward a TCP host port to the container's port 80.
func Published(port int) Object {
	return Object{"runtimeConfig": Object{"portMappings": []Object{
		{"hostPort": port, "containerPort": 80, "protocol": "tcp"}}}}
}

// Only returns the steps of these plugins.
func (l List) Only(plugins ...string) List {
	return slices.DeleteFunc(slices.Clone(l), func(e Step) bool { return !slices.Contains(plugins, e.Plugin) })
}

// With returns the list with additional keys of a plugin; the value nil removes a key.
func (l List) With(plugin string, keys Object) List {
	out := slices.Clone(l)
	for i, e := range out {
		if e.Plugin == plugin {
			out[i].Keys = Merge(e.Keys, keys)
		}
	}
	return out
}

// Port returns the list with another host port.
func (l List) Port(port int) List { return l.With("portmap", Published(port)) }

// Valid returns the list for GC, with the attachments of pods as the only valid ones.
func (l List) Valid(pods ...*Pod) List {
	valid := []Object{}
	for _, p := range pods {
		valid = append(valid, p.Attachment())
	}
	out := slices.Clone(l)
	for i, e := range out {
		out[i].Keys = Merge(e.Keys, Object{"cni.dev/valid-attachments": valid})
	}
	return out
}

// Pod is a container with the values that a runtime passes in each call.
type Pod struct {
	*nstest.Host
	Call
	Network string
	Result  json.RawMessage // of the last ADD
}

// NewPod creates a container without an attachment.
func NewPod(id string) *Pod {
	ginkgo.GinkgoHelper()
	c := nstest.NewNetns()
	c.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	return &Pod{Host: c, Network: "net", Call: Call{ID: id, IfName: "eth0", Netns: c.Path}}
}

// Attachment returns the pod's attachment as in GC's configuration.
func (p *Pod) Attachment() Object { return Object{"containerID": p.ID, "ifname": p.IfName} }

// Decode returns the result of the last ADD.
func (p *Pod) Decode() Result {
	ginkgo.GinkgoHelper()
	var r Result
	gomega.Expect(json.Unmarshal(p.Result, &r)).To(gomega.Succeed())
	return r
}

// Addr returns the pod's IPv4 address.
func (p *Pod) Addr() string {
	ginkgo.GinkgoHelper()
	address, _, _ := strings.Cut(p.Decode().IPs[0].Address, "/")
	return address
}

// NewNode creates a world with all plugins as programs. At the end of a spec that passed, it detaches the pods that are
// still attached, and checks that nothing is [Left] of any pod.
func NewNode() *World {
	ginkgo.GinkgoHelper()
	w := &World{Host: nstest.NewHost(), Dir: ginkgo.GinkgoT().TempDir()}
	w.attached = &attached{lists: map[string]detach{}}
	for _, name := range nstest.Plugins() {
		gomega.Expect(os.Symlink(nstest.Build(name), filepath.Join(w.Dir, name))).To(gomega.Succeed())
	}
	w.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	dir := w.Dir
	ginkgo.DeferCleanup(func() {
		if !w.Spoiled && !ginkgo.CurrentSpecReport().Failed() {
			w.Dir, w.Env, w.Before, w.Other = dir, nil, "", nil
			w.end()
		}
	})
	return w
}

// With returns the same host with a release of the reference plugins, including IPAM.
func (w *World) With(ref nstest.Reference) *World {
	ginkgo.GinkgoHelper()
	return &World{Host: w.Host, Dir: ref.Dir(), Version: "1.0.0", programs: ref.Dir(), attached: w.attached}
}

// Try runs one plugin as a program.
func (w *World) Try(plugin string, c Call) Answer {
	ginkgo.GinkgoHelper()
	p := c.Program(w, w.program(plugin))
	p.Env = append(p.Env, w.Env...)
	if w.Before != "" {
		p.Args, p.Path = []string{"-c", w.Before + "\nexec " + p.Path}, "/bin/bash"
	}
	return Ran(w.Run(p))
}

func (w *World) program(plugin string) string {
	ginkgo.GinkgoHelper()
	if w.programs == "" {
		return nstest.Build(plugin)
	}
	return filepath.Join(w.programs, plugin)
}

// Invoke is Try, and checks the answer with Verdict.
func (w *World) Invoke(plugin string, c Call) Answer {
	ginkgo.GinkgoHelper()
	a := w.Try(plugin, c)
	gomega.Expect(a.Verdict(c.Command)).To(gomega.Succeed(), "%s %s: %s%s", plugin, c.Command, a.Stdout, a.Stderr)
	return a
}

// Trace runs a call that must succeed, and returns its requests to the kernel.
func (w *World) Trace(plugin string, c Call) *trace.Record {
	ginkgo.GinkgoHelper()
	var r *trace.Record
	command := trace.Command{Path: w.program(plugin), Env: c.Vars(w), Stdin: c.Stdin()}
	w.Do(func() { r = nstest.Must(trace.Run(command)) })
	gomega.Expect(r.Exit).To(gomega.BeZero(), "%s %s: %s%s", plugin, c.Command, r.Stdout, r.Stderr)
	return r
}

// CallOf returns the call of one plugin of a pod's list, as a runtime makes it.
func (w *World) CallOf(command string, p *Pod, e Step) Call {
	c := p.Call
	c.Command = command
	conf := Merge(Object{"cniVersion": w.version(command), "name": p.Network, "type": e.Plugin}, e.Keys)
	if p.Result != nil {
		conf["prevResult"] = p.Result
	}
	c.Conf = conf
	return c
}

func (w *World) version(command string) string {
	if command == "GC" || command == "STATUS" { // which older versions lack
		return "1.1.0"
	}
	return cmp.Or(w.Version, "1.1.0")
}

// Chain calls each plugin of a list, for DEL from the last to the first. It returns the first answer that is an error,
// or the last answer.
func (w *World) Chain(command string, p *Pod, list List) (a Answer) {
	ginkgo.GinkgoHelper()
	serve := w.Invoke
	if w.Other != nil {
		serve = w.Other
	}
	if command == "ADD" { // a failed ADD also needs its DEL
		w.attached.note(command, p, list)
	}
	for i := range list {
		e := list[i]
		if command == "DEL" {
			e = list[len(list)-1-i]
		}
		if a = serve(e.Plugin, w.CallOf(command, p, e)); a.Code != 0 {
			return a
		}
		if command == "ADD" {
			p.Result = json.RawMessage(a.Stdout)
		}
	}
	w.attached.note(command, p, list)
	return a
}

// Up attaches a pod, which must succeed.
func (w *World) Up(p *Pod, list List) *Pod {
	ginkgo.GinkgoHelper()
	w.Must("ADD", p, list)
	return p
}

// Must runs a command that must succeed.
func (w *World) Must(command string, p *Pod, list List) {
	ginkgo.GinkgoHelper()
	a := w.Chain(command, p, list)
	gomega.Expect(a.Code).To(gomega.BeZero(), "%s: %s", command, a.Stdout)
}

// State returns everything on the host that a plugin could have changed.
func (w *World) State() string {
	ginkgo.GinkgoHelper()
	return w.Snapshot() + w.Files("/run", "/var/lib", "/etc/cni", "/opt/cni")
}

// Own returns the plugins' files.
func (w *World) Own() string {
	ginkgo.GinkgoHelper()
	return w.Files("/run/hawser", "/run/cni", "/var/lib/cni")
}

// attached has the attachments that a world must still remove.
type attached struct {
	sync.Mutex
	lists map[string]detach
}

type detach struct {
	pod  Pod
	list List
}

func (a *attached) note(command string, p *Pod, list List) {
	if a == nil {
		return
	}
	a.Lock()
	defer a.Unlock()
	key := func(id, ifName any) string { return fmt.Sprint(p.Network, " ", id, " ", ifName) }
	switch command {
	case "ADD":
		a.lists[key(p.ID, p.IfName)] = detach{*p, list}
	case "DEL":
		delete(a.lists, key(p.ID, p.IfName))
	case "GC":
		all, listed := list[0].Keys["cni.dev/valid-attachments"].([]Object)
		if !listed { // without a list, GC removes nothing
			return
		}
		valid := map[string]bool{}
		for _, v := range all {
			valid[key(v["containerID"], v["ifname"])] = true
		}
		maps.DeleteFunc(a.lists, func(k string, d detach) bool { return d.pod.Network == p.Network && !valid[k] })
	}
}

func (w *World) end() {
	ginkgo.GinkgoHelper()
	for _, d := range w.attached.lists {
		w.Must("DEL", &d.pod, d.list)
	}
	gomega.Eventually(func() []string { return Leftovers(w.Host) }).Should(gomega.BeEmpty(), "left on the host")
}

var (
	// ofOne matches links, rules and chains of one attachment, and addresses of Usual's networks.
	ofOne = regexp.MustCompile(`ifname=veth|[0-9a-f]{16} \S+ \S+ \S|\bCNI-([0-9a-f]{24}|(DN|SN)-[0-9a-f]{21})` +
		`|\b10\.88\.0\.\d|\bfd00:88::`)
	// ofAll matches files that all attachments share: locks, the index of leases, last reserved addresses, failures.
	ofAll = regexp.MustCompile(`/run/hawser/failures/|/(nft\.|netns\.|networks/[^/]+/)?lock$` +
		`|/networks/\.hawser/[^/]+$|/last_reserved_ip\.`)
)

// Leftovers returns the remains of attachments on a host: links, rules, leases, records.
func Leftovers(h *nstest.Host) (left []string) {
	ginkgo.GinkgoHelper()
	for line := range strings.Lines(h.Snapshot("links", "nftables", "iptables-legacy")) {
		if ofOne.MatchString(line) {
			left = append(left, line)
		}
	}
	files := h.Run(nstest.Program{Path: "find", Args: []string{"/var/lib/cni/networks", "/run/hawser", "/run/cni",
		"-type", "f"}}).Stdout
	for _, file := range strings.Fields(files) {
		if !ofAll.MatchString(file) {
			left = append(left, file)
		}
	}
	return left
}
