package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestBridge(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/main/bridge")
}

// object is a JSON object.
type object = map[string]any

// world is a host with containers and a directory of IPAM plugins.
type world struct {
	*nstest.Host
	dir string // CNI_PATH
}

// newWorld makes a host, and "fake", an IPAM plugin that writes down each call
// and answers as it is told to with answer.
func newWorld() *world {
	GinkgoHelper()
	w := &world{Host: nstest.NewHost(), dir: GinkgoT().TempDir()}
	w.SetSysctl("net/ipv6/conf/default/accept_dad", "0") // no wait for link-local addresses
	w.script("fake", `d=$(dirname "$0"); echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME" >>"$d/calls"
for f in "$d/on.$CNI_COMMAND.$CNI_CONTAINERID" "$d/on.$CNI_COMMAND"; do [ ! -e "$f" ] || { . "$f"; exit; }; done
cat >/dev/null`)
	return w
}

func (w *world) script(name, body string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(w.dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755)).To(Succeed())
}

// on says what fake does on a command: a piece of shell. With a container ID it
// is for that container alone.
func (w *world) on(command, body string, id ...string) {
	GinkgoHelper()
	name := strings.Join(append([]string{"on", command}, id...), ".")
	Expect(os.WriteFile(filepath.Join(w.dir, name), []byte(body+"\n"), 0o644)).To(Succeed())
}

// lend makes fake answer an ADD with a result.
func (w *world) lend(result string, id ...string) {
	GinkgoHelper()
	w.on("ADD", "cat >/dev/null; cat <<'E'\n"+result+"\nE", id...)
}

// lendAddrs makes fake lend addresses, "10.1.0.2/24 10.1.0.1" being one with its
// gateway.
func (w *world) lendAddrs(id string, addrs ...string) {
	GinkgoHelper()
	w.lend(lease(addrs...), id)
}

func lease(addrs ...string) string {
	var ips []object
	for _, a := range addrs {
		address, gateway, _ := strings.Cut(a, " ")
		ip := object{"address": address}
		if gateway != "" {
			ip["gateway"] = gateway
		}
		ips = append(ips, ip)
	}
	return text(object{"cniVersion": "1.1.0", "ips": ips})
}

// calls lists the calls of fake since the last time: "ADD one eth0".
func (w *world) calls() []string {
	GinkgoHelper()
	file := filepath.Join(w.dir, "calls")
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.Remove(file)
	}
	if !os.IsNotExist(err) {
		Expect(err).NotTo(HaveOccurred())
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
}

// conf is a configuration of network "net" with bridge "br": keys are added, or
// taken away by nil.
func conf(more ...object) object {
	c := object{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br"}
	for _, m := range more {
		maps.Copy(c, m)
	}
	for k, v := range c {
		if v == nil {
			delete(c, k)
		}
	}
	return c
}

func fakeIPAM() object { return object{"ipam": object{"type": "fake"}} }

// l3 is conf with addresses from fake.
func l3(more ...object) object { return conf(append([]object{fakeIPAM()}, more...)...) }

func text(v any) string {
	GinkgoHelper()
	out, err := json.Marshal(v)
	Expect(err).NotTo(HaveOccurred())
	return string(out)
}

// call is one call of the plugin.
type call struct {
	command string
	id      string // "one"
	ifName  string // "eth0"
	netns   string
	args    string
	conf    any    // object, or text
	path    string // CNI_PATH instead of the world's
	ctx     context.Context
	stdout  io.Writer // instead of a buffer
}

func (c call) vars(w *world) []string {
	return []string{"CNI_COMMAND=" + c.command, "CNI_CONTAINERID=" + cmp.Or(c.id, "one"), "CNI_IFNAME=" + cmp.Or(c.ifName, "eth0"),
		"CNI_NETNS=" + c.netns, "CNI_ARGS=" + c.args, "CNI_PATH=" + cmp.Or(c.path, w.dir), "PATH=" + os.Getenv("PATH")}
}

func (c call) stdin() string {
	if s, ok := c.conf.(string); ok {
		return s
	}
	return text(c.conf)
}

// answer is what came of a call.
type answer struct {
	code           int
	stdout, stderr string
}

// run serves a call in this process, on a thread in the world's namespaces.
func (w *world) run(c call) answer {
	GinkgoHelper()
	var out, errs bytes.Buffer
	env := skel.Env{Vars: c.vars(w), Stdin: strings.NewReader(c.stdin()), Stdout: &out, Stderr: &errs}
	if c.stdout != nil {
		env.Stdout = c.stdout
	}
	if c.ctx == nil {
		c.ctx = context.Background()
	}
	var code int
	w.Do(func() { code = skel.Run(c.ctx, plugin(), env) })
	return answer{code, out.String(), errs.String()}
}

// exec runs the built plugin as a runtime does.
func (w *world) exec(c call) answer {
	GinkgoHelper()
	out := w.Run(nstest.Program{Path: nstest.Build("bridge"), Env: c.vars(w), Stdin: c.stdin()})
	return answer{out.Exit, out.Stdout, out.Stderr}
}

// succeeds checks that a call other than ADD went well and said nothing.
func (w *world) succeeds(c call) {
	GinkgoHelper()
	a := w.run(c)
	Expect(a.stdout).To(BeEmpty())
	Expect(a.code).To(BeZero())
}

// fails checks that a call printed one error object with a code, and returns its
// message and details.
func (w *world) fails(c call, code uint) string {
	GinkgoHelper()
	return failed(w.run(c), code)
}

func failed(a answer, code uint) string {
	GinkgoHelper()
	var e struct {
		CNIVersion, Msg, Details string
		Code                     uint
	}
	Expect(json.Unmarshal([]byte(a.stdout), &e)).To(Succeed(), "one JSON document: %s", a.stdout)
	Expect(e.Code).To(Equal(code), a.stdout)
	Expect(e.Msg).NotTo(BeEmpty())
	Expect(e.CNIVersion).NotTo(BeEmpty())
	Expect(a.code).To(Equal(1))
	return e.Msg + "\n" + e.Details
}

// result is what ADD printed, in the newest shape.
type result struct {
	CNIVersion string
	Interfaces []struct {
		Name, MAC, Sandbox string
		MTU                int
	}
	IPs []struct {
		Address, Gateway string
		Interface        *int
	}
	Routes []struct {
		Dst, GW string
		Table   int
	}
	DNS  object
	text string
}

// add serves an ADD that must succeed.
func (w *world) add(c call) result {
	GinkgoHelper()
	c.command = "ADD"
	return added(w.run(c))
}

func added(a answer) result {
	GinkgoHelper()
	Expect(a.code).To(BeZero(), a.stdout)
	r := result{text: a.stdout}
	Expect(json.Unmarshal([]byte(a.stdout), &r)).To(Succeed(), a.stdout)
	return r
}

// hostEnd is the name of the result's port.
func (r result) hostEnd() string { return r.Interfaces[1].Name }

// with is a configuration with a result as its prevResult.
func with(c object, prev result) object {
	c = maps.Clone(c)
	c["prevResult"] = json.RawMessage(prev.text)
	return c
}

// ip runs ip(8) with words separated by blanks.
func ip(h *nstest.Host, format string, args ...any) string {
	GinkgoHelper()
	return h.Cmd("ip", strings.Fields(fmt.Sprintf(format, args...))...)
}

// shown is ip(8)'s view of a link.
type shown struct {
	Ifname, Operstate, Address, Ifalias, Master string
	Index                                       int `json:"ifindex"`
	MTU, Promiscuity                            int
	Flags                                       []string
	Linkinfo                                    struct {
		Kind string                           `json:"info_kind"`
		Port struct{ Hairpin, Isolated bool } `json:"info_slave_data"`
		Data struct {
			Filtering int `json:"vlan_filtering"`
		} `json:"info_data"`
	}
	AddrInfo []struct {
		Local     string
		Prefixlen int
		Tentative bool
		Scope     string
	} `json:"addr_info"`
}

func show(h *nstest.Host, name string) shown {
	GinkgoHelper()
	var links []shown
	h.JSON(&links, "ip", "-j", "-d", "addr", "show", "dev", name)
	Expect(links).To(HaveLen(1))
	return links[0]
}

// addrs are a link's addresses but the link-local ones.
func (s shown) addrs() []string {
	out := []string{}
	for _, a := range s.AddrInfo {
		if a.Scope == "global" {
			out = append(out, fmt.Sprintf("%s/%d", a.Local, a.Prefixlen))
		}
	}
	return out
}

// names lists the links of a kind, or all but lo.
func names(h *nstest.Host, kind string) []string {
	GinkgoHelper()
	args := []string{"-j", "link"}
	if kind != "" {
		args = append(args, "show", "type", kind)
	}
	var links []shown
	h.JSON(&links, "ip", args...)
	out := []string{}
	for _, l := range links {
		if l.Ifname != "lo" {
			out = append(out, l.Ifname)
		}
	}
	return out
}

// routes lists a family's routes as "dst via gateway metric".
func routes(h *nstest.Host, family string) []string {
	GinkgoHelper()
	var list []struct {
		Dst, Gateway string
		Metric       int
	}
	h.JSON(&list, "ip", "-j", family, "route")
	out := []string{}
	for _, r := range list {
		if r.Gateway != "" {
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%s via %s %d", r.Dst, r.Gateway, r.Metric), " 0"))
		}
	}
	return out
}

// ping tells whether an address answers within a second.
func ping(h *nstest.Host, address string) bool {
	GinkgoHelper()
	seconds := fmt.Sprint(int(nstest.Patience(1e9).Seconds()))
	return h.Run(nstest.Program{Path: "ping", Args: []string{"-c1", "-w" + seconds, "-n", address}}).Exit == 0
}

// attached is a container with what ADD returned for it.
type attached struct {
	*nstest.Host
	call call
	res  result
}

// attach makes a container and attaches it; fake lends it the addresses.
func (w *world) attach(id string, c object, addrs ...string) attached {
	GinkgoHelper()
	if addrs != nil {
		w.lendAddrs(id, addrs...)
	}
	cont := nstest.NewNetns()
	cl := call{id: id, netns: cont.Path, conf: c}
	return attached{cont, cl, w.add(cl)}
}

// as is the call of a later command, with the result as prevResult.
func (a attached) as(command string) call {
	c := a.call
	c.command, c.conf = command, with(c.conf.(object), a.res)
	return c
}

// linkLocal is the link-local address of a link, once it may be used.
func linkLocal(h *nstest.Host, name string) (address string) {
	GinkgoHelper()
	Eventually(func() string {
		for _, a := range show(h, name).AddrInfo {
			if strings.HasPrefix(a.Local, "fe80:") && !a.Tentative {
				address = a.Local
			}
		}
		return address
	}, nstest.Patience(3*time.Second)).ShouldNot(BeEmpty())
	return address
}

// settle waits until the kernel has done all that it does by itself when a
// container is attached, so that a snapshot stays true.
func (w *world) settle(a attached) attached {
	GinkgoHelper()
	linkLocal(w.Host, "br")
	linkLocal(w.Host, a.res.hostEnd())
	linkLocal(a.Host, "eth0")
	return a
}
