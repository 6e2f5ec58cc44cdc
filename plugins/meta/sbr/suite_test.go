package main

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestSBR(t *testing.T) { nstest.RunSpecs(t, "sbr") }

// world has a container with eth0 and eth1, each on a router of its own.
type world struct {
	*World
	cont    *nstest.Host
	routers map[string]*nstest.Host
}

// newWorld gives eth1 the addresses, and a router at the end of its cable.
func newWorld(addrs ...string) *world {
	GinkgoHelper()
	w := &world{World: NewWorld(plugin()), cont: nstest.NewNetns(), routers: map[string]*nstest.Host{}}
	w.link("eth0", "10.1.0.2/24")
	w.link("eth1", addrs...)
	IP(w.cont, "route add default via 10.1.0.1")
	return w
}

func (w *world) link(name string, addrs ...string) {
	GinkgoHelper()
	w.routers[name] = Cable(w.cont, name)
	for _, a := range addrs {
		IP(w.cont, "addr add %s dev %s", a, name)
		if addr, _, _ := strings.Cut(a, "/"); strings.Contains(addr, ":") { // a worker of the kernel makes its route
			Eventually(func() string { return IP(w.cont, "-6 route show table local dev %s", name) }).
				Should(ContainSubstring("local " + addr))
			Eventually(func() string { return IP(w.cont, "-6 addr show tentative dev %s", name) }).
				Should(BeEmpty())
		}
	}
}

// call is a call about eth1, whose result has the addresses ("10.2.0.2/24 10.2.0.1" is one with its gateway).
func (w *world) call(command string, keys Object, addrs ...string) Call {
	GinkgoHelper()
	ips := []Object{{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 0}}
	for _, a := range addrs {
		address, gateway, _ := strings.Cut(a, " ")
		ip := Object{"address": address, "interface": 2}
		if gateway != "" {
			ip["gateway"] = gateway
		}
		ips = append(ips, ip)
	}
	prev := Object{"cniVersion": "1.1.0", "ips": ips, "interfaces": []Object{
		{"name": "eth0", "sandbox": w.cont.Path}, {"name": "eth1"}, {"name": "eth1", "sandbox": w.cont.Path}}}
	conf := Object{"cniVersion": "1.1.0", "name": "net", "type": "sbr", "prevResult": prev}
	return Call{Command: command, IfName: "eth1", Netns: w.cont.Path, Conf: Merge(conf, keys)}
}

// add is an ADD that must succeed, and says nothing else.
func (w *world) add(keys Object, addrs ...string) Result {
	GinkgoHelper()
	a := w.Call(w.call("ADD", keys, addrs...))
	Expect(a.Stderr).To(BeEmpty())
	return a.Added()
}

func (w *world) del(keys Object) {
	GinkgoHelper()
	w.Succeeds(w.call("DEL", Merge(keys, Object{"prevResult": nil})))
}

// rules are those that the kernel did not make: "10.2.0.2 100".
func (w *world) rules() []string {
	GinkgoHelper()
	out := []string{}
	for _, family := range []string{"-4", "-6"} {
		var rules []struct{ Src, Table string }
		w.cont.JSON(&rules, "ip", "-j", family, "rule")
		for _, r := range rules {
			if r.Src != "all" {
				out = append(out, r.Src+" "+r.Table)
			}
		}
	}
	return out
}

// routes are the unicast routes of a table, as ip(8) writes them.
func (w *world) routes(table string) []string {
	GinkgoHelper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		done := w.cont.Run(nstest.Program{Path: "ip", Args: []string{family, "route", "show", "table", table}})
		for line := range strings.Lines(done.Stdout) {
			if !strings.HasPrefix(line, "multicast") {
				out = append(out, strings.TrimSpace(strings.ReplaceAll(line, " pref medium", "")))
			}
		}
	}
	return out
}

// sends says through which link the container sends from an address.
func (w *world) sends(from, to string) string {
	GinkgoHelper()
	var way []struct{ Dev, Gateway string }
	w.cont.JSON(&way, "ip", "-j", "route", "get", to, "from", from)
	Expect(way).To(HaveLen(1))
	return strings.TrimSpace(way[0].Dev + " " + way[0].Gateway)
}

// same matches a route as ip(8) writes it, in any order.
func same(route string) OmegaMatcher {
	words := func(s string) []string { return strings.Fields(s) }
	return WithTransform(words, ConsistOf(words(route)))
}

func table(n int) string { return fmt.Sprint(n) }

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(plugin()) })

// fuzzPrev is a result without gateways: the container's eth0 has no address that would lead there.
const fuzzPrev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + FuzzNetns +
	`"}],"ips":[{"address":"10.1.0.2/24","interface":0},{"address":"fd01::2/64"}]}`

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"sbr","gateways":["10.1.0.9","fd01::9"],"addSourceHints":true,` +
				`"cni.dev/valid-attachments":[],` + fuzzPrev + `}`,
			`{"cniVersion":"1.0.0","name":"net","table":77,` + fuzzPrev + `}`,
			`{"name":"net","prevResult":{"ip4":{"ip":"10.1.0.2/24"}}}`,
			`{"cniVersion":"1.1.0","name":"net","table":255,"gateways":["x"]}`,
		},
	}.Run(f)
}

// FuzzFiles damages the records.
func FuzzFiles(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":` +
			`[{"containerID":"one","ifname":"eth0"}],` + fuzzPrev + `}`},
	}.RunFiles(f, recordDir, ``, `[]`, `{"network":"net","containerID":"one","ifname":"eth0","plan":{"rules":[{"src":`+
		`"10.1.0.2/32","table":100}],"moved":[{"header":{"Family":2,"Dst_len":24,"Table":254,"Type":1},`+
		`"attrs":[{"kind":1,"value":"CgEAAA=="},{"kind":9,"value":"EAAAAAE="}]}]}}`,
		`{"network":"net","containerID":"one","ifname":"eth0","plan":{"rules":[{"src":"0.0.0.0/0","table":254},`+
			`{"table":1}],"defaults":[{"Dst":"10.1.0.0/33","GW":"x"}],`+
			`"moved":[{"attrs":[{"kind":15,"value":"/w=="}]}]}}`)
}
