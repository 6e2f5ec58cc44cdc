package docs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
	shipped "github.com/hawser-cni/plugins/plugins"
)

// plugins are all of this suite, with the least that each is content with.
var plugins = map[string]string{
	"bandwidth":   `{}`,
	"bridge":      `{}`,
	"host-device": `{"device": "eth1"}`,
	"ptp":         `{"ipam": {"type": "static"}}`,
	"loopback":    `{}`,
	"macvlan":     `{}`,
	"tap":         `{}`,
	"host-local":  `{"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.9.0.0/16"}}`,
	"dhcp":        `{"type": "bridge", "ipam": {"type": "dhcp"}}`,
	"static":      `{"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "10.9.0.5/16"}]}}`,
	"tuning":      `{}`,
	"firewall":    `{}`,
	"sbr":         `{}`,
	"portmap":     `{"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}`,
	"vrf":         `{"vrfname": "red"}`,
	"ipvlan":      `{}`,
	"dummy":       `{"ipam": {"type": "static"}}`,
	"vlan":        `{"master": "up0", "vlanId": 5}`,

	"cluster-local":   `{"type": "macvlan", "ipam": {"type": "cluster-local", "subnet": "10.9.0.0/16"}}`,
	"tc-redirect-tap": `{}`,
}

// subject is what a table of values is tried on.
type subject struct {
	plugin string // that is run
	schema string // that judges the part
	base   any    // the whole
	part   func(whole any) any
}

func subjectOf(table string) subject {
	GinkgoHelper()
	self := func(whole any) any { return whole }
	single := func(plugin, more string) any {
		return merge(parsed(`{"cniVersion": "1.1.0", "name": "net1", "type": "`+plugin+`"}`), parsed(more))
	}
	switch table {
	case "entry":
		return subject{"loopback", "loopback", single("loopback", "{}"), self}
	case "list":
		return subject{"loopback", "network",
			parsed(`{"cniVersion": "1.1.0", "name": "net1", "plugins": [{"type": "loopback"}]}`), self}
	}
	return subject{table, table, single(table, plugins[table]), self}
}

// merge is a with what b says, object by object; null in b takes away.
func merge(a, b any) any {
	into, ok := a.(object)
	from, too := b.(object)
	if !ok || !too {
		if list, ok := a.([]any); ok && len(list) > 0 {
			if other, ok := b.([]any); ok && len(other) > 0 {
				return append([]any{merge(list[0], other[0])}, list[1:]...)
			}
		}
		return b
	}
	out := maps.Clone(into)
	for k, v := range from {
		if out[k] = merge(into[k], v); v == nil {
			delete(out, k)
		}
	}
	return out
}

// put is doc with a value at a key: vlanTrunk[].id is that of the first entry.
func put(doc any, key string, value any) any {
	if key == "" {
		return value
	}
	if rest, ok := strings.CutPrefix(key, "[]"); ok {
		list, _ := doc.([]any)
		if len(list) == 0 {
			list = []any{nil}
		}
		return append([]any{put(list[0], strings.TrimPrefix(rest, "."), value)}, list[1:]...)
	}
	i := strings.IndexAny(key+".", ".[")
	name, rest := key[:i], strings.TrimPrefix(key[i:], ".")
	o, _ := doc.(object)
	if o = maps.Clone(o); o == nil {
		o = object{}
	}
	o[name] = put(o[name], rest, value)
	return o
}

// report is what --check-config says: "error: KEY: what is wrong", a line each.
type report string

func (r report) lines(level string) (list []string) {
	for _, m := range regexp.MustCompile(`(?m)^`+level+`: (.*)$`).FindAllStringSubmatch(string(r), -1) {
		list = append(list, m[1])
	}
	return list
}

// checkConfig runs --check-config in this process, because there are thousands of values. cluster-local is not in the
// list of plugins, so its program runs.
func checkConfig(plugin, conf string) (r report, code int) {
	GinkgoHelper()
	var out strings.Builder
	programs := shipped.All()
	if p, ok := skel.FindProgram(programs, plugin); ok {
		code = p.Run(context.Background(), skel.Env{Called: plugin, Args: []string{"--check-config"},
			Vars: os.Environ(), Stdin: strings.NewReader(conf), Stdout: &out, Stderr: GinkgoWriter, Programs: programs})
		return report(out.String()), code
	}
	cmd := exec.Command(nstest.Build(plugin), "--check-config")
	cmd.Stdin, cmd.Stdout = strings.NewReader(conf), &out
	_ = cmd.Run()
	return report(out.String()), cmd.ProcessState.ExitCode()
}

// expectGood has the schema, that of whole files and the parser take a document.
func (s subject) expectGood(doc any) {
	text := plugintest.Text(doc)
	Expect(validate(schema(s.schema), doc)).To(Succeed(), text)
	Expect(validate(schema("network"), doc)).To(Succeed(), text)
	r, code := checkConfig(s.plugin, text)
	Expect(r.lines("error")).To(BeEmpty(), text)
	Expect(code).To(Or(BeZero(), Equal(3)), text) // 3: it is another plugin's
}

func (s subject) expectRefused(doc any) {
	text := plugintest.Text(doc)
	Expect(validate(schema(s.schema), doc)).NotTo(Succeed(), text)
	Expect(validate(schema("network"), doc)).NotTo(Succeed(), text)
}

// expectBad has the parser refuse a document, and name the value or say of which type it is.
// near is the key that it must complain about, or about what is in it or around it; empty for any.
func (s subject) expectBad(doc, value any, near string) report {
	text := plugintest.Text(doc)
	r, code := checkConfig(s.plugin, text)
	Expect(code).To(Equal(1), text)
	if name := plugintest.Text(value); near != "" && value != nil && !strings.ContainsAny(name, "[{") {
		shown := strings.ReplaceAll(strings.Trim(name, `"`), `\u001b`, `\x1b`)
		Expect(string(r)).To(Or(ContainSubstring(shown),
			MatchRegexp(`: (missing|is (a|no|not an?) (JSON|object) )`)), text)
	}
	keys := []string{}
	for _, line := range r.lines("error") {
		key, _, _ := strings.Cut(line, ": ")
		keys = append(keys, index.ReplaceAllString(key, "[]"))
	}
	Expect(keys).To(ContainElement(Or(HavePrefix(near),
		Satisfy(func(k string) bool { return strings.HasPrefix(near, k) }))), text)
	return r
}

var index = regexp.MustCompile(`\[\d+\]`)

// expectADD has ADD report what --check-config does.
func (s subject) expectADD(w *plugintest.World, netns string, doc any, r report) {
	said := w.Exec(plugintest.Call{Command: "ADD", Netns: netns, Conf: doc}).Failed(cni.CodeConfig)
	for _, line := range r.lines("error") {
		Expect(said).To(MatchRegexp(`(?m)(^|; )%s(;|$)`, regexp.QuoteMeta(line)))
	}
}

var _ = Describe("the schemas", Ordered, ContinueOnFailure, func() {
	var w *plugintest.World // for ADDs that are refused
	var cont *nstest.Host
	BeforeAll(func() {
		w, cont = plugintest.NewWorld(skel.Plugin[any]{}), nstest.NewNetns()
	})
	for table, list := range tables() {
		for _, v := range list {
			It(fmt.Sprintf("and the parser agree: %s, %s %s", table, v.key, v.beside), func() {
				s, near := subjectOf(table), v.key
				if v.beside != "" {
					s.base, near = merge(s.base, parsed(v.beside)), ""
				}
				for _, value := range parsed(v.good).([]any) {
					s.expectGood(put(s.base, v.key, value))
				}
				w.Plugin.Name = s.plugin
				for _, value := range parsed(v.bad).([]any) {
					s.expectRefused(put(s.base, v.key, value))
				}
				if table != s.plugin { // keys for the runtime, which no plugin reads
					return
				}
				if v.beyond == "" {
					v.beyond = "[]"
				}
				for i, value := range append(parsed(v.bad).([]any), parsed(v.beyond).([]any)...) {
					doc := put(s.base, v.key, value)
					r := s.expectBad(doc, value, near)
					if i == 0 || !nstest.Quick() {
						s.expectADD(w, cont.Path, doc, r)
					}
				}
			})
		}
	}
})

// specCase is one key of the JSON Schemas that go about for the specification
// (www.cni.dev/schemas/network-config.json and result.json): with each of the good values they take a document
// that is otherwise minimal, with each of the bad ones they do not. They are compared key by key, since their
// text comes without a license.
type specCase struct{ key, good, bad string }

const (
	versionGood = `["1.0.0", "0.4.0", "0.3.1"]`
	versionBad  = `["1.0", "text", 5, []]`
	dnsBad      = `["text", [], {"nameservers": "text"}, {"nameservers": [5]}, {"domain": 5}, {"search": {}},
		{"search": [true]}, {"options": [5]}]`
	dnsGood = `[{}, {"nameservers": ["10.96.0.10"], "domain": "cluster.local", "search": ["example.com"],
		"options": ["ndots:5"]}]`
	routesGood = `[[], [{"dst": "0.0.0.0/0"}], [{"dst": "::/0", "gw": "fd00::1"}], [{"dst": "10.0.0.0/8",
		"gw": "10.0.0.1", "mtu": 68, "advmss": 1}], [{"dst": "10.0.0.0/8", "mtu": 65535, "advmss": 1460}]]`
	routesBad = `["text", {}, [{}], ["text"], [{"gw": "10.0.0.1"}], [{"dst": 5}], [{"dst": "0.0.0.0/0", "gw": 5}],
		[{"dst": "0.0.0.0/0", "mtu": "x"}], [{"dst": "0.0.0.0/0", "mtu": 1.5}], [{"dst": "0.0.0.0/0",
		"advmss": {}}]]`
)

// resultCases are of results, and of prevResult.
var resultCases = []specCase{
	{"cniVersion", versionGood, versionBad},
	{"interfaces", `[[], [{"name": "eth0"}], [{"name": "eth0", "mac": "0a:58:0a:f4:00:01", "mtu": 68,
		"sandbox": "/proc/12345/ns/net"}],
		[{"name": "net1", "mtu": 65535, "sandbox": "", "socketPath": "/run/x", "pciID": "0000:03:00.1"}]]`,
		`["text", {}, ["eth0"], [{}], [{"mac": "0a:58:0a:f4:00:01"}], [{"name": 5}], [{"name": "eth0", "mtu": "x"}],
			[{"name": "eth0", "mtu": 1.5}],
		[{"name": "eth0", "sandbox": 5}], [{"name": "eth0", "socketPath": []}], [{"name": "eth0", "pciID": true}]]`},
	{"ips", `[[], [{"address": "10.244.0.5/24"}], [{"address": "fd00::1/64", "gateway": "fd00::2", "interface": 0}]]`,
		`["text", {}, [{}], ["10.244.0.5/24"], [{"gateway": "10.0.0.1"}], [{"address": 5}], [{"address": "10.0.0.2/8",
			"gateway": 5}], [{"address": "10.0.0.2/8", "interface": "x"}],
		[{"address": "10.0.0.2/8", "interface": -1}]]`},
	{"routes", routesGood, routesBad},
	{"dns", dnsGood, dnsBad},
}

// networkCases are of configurations, tried in one of bridge. The keys of other plugins, those of host-local's
// ranges and portmap's mappings, are in the tables of values.
var networkCases = []specCase{
	{"cniVersion", versionGood, versionBad},
	{"cniVersions", `[["1.0.0", "0.4.0"], []]`, `["1.0.0", {}, [5]]`},
	{"name", `["mynet", "k8s-pod-network", "bridge-net"]`, `["", "-a", "a b", 5]`},
	{"type", `["bridge", "antrea", "calico", "weave-net"]`, `["", 5, []]`},
	{"args", `[{}, {"cni": {}}, {"cni": {"disable-check": true, "aliases": {"a": ["b"]}}}, {"other": 1}]`,
		`["text", [], {"cni": "text"}, {"cni": []}]`},
	{"ipMasq", `[true, false]`, `["x", 1]`},
	{"ipam", `[{"type": "dhcp"}, {"type": "whereabouts", "range": "10.0.0.0/8"}]`, `["text", [], {"type": 5}]`},
	{"dns", dnsGood, dnsBad},
	{"capabilities", `[{}, {"portMappings": true, "ipRanges": false, "bandwidth": true, "dns": true, "mac": true,
			"aliases": true, "infinibandGUID": true, "deviceID": true, "other": false}]`,
		`["text", [], {"mac": "x"}, {"other": 1}]`},
	{"runtimeConfig", `[{}, {"mac": "0a:58:0a:f4:00:01"}, {"bandwidth": {"ingressRate": 0, "egressBurst": 8},
			"dns": {}, "other": 1}]`,
		`["text", [], {"mac": "x"}, {"mac": 5}]`},
	{"prevResult", `[{"cniVersion": "1.0.0"}]`, `["text", [], {}]`},
}

// expectAs checks that documents are taken, or refused.
func expectAs(name string, base any, c specCase) {
	GinkgoHelper()
	for _, value := range parsed(c.good).([]any) {
		Expect(validate(schema(name), put(base, c.key, value))).To(Succeed(), "%s: %v", c.key, value)
	}
	for _, value := range parsed(c.bad).([]any) {
		Expect(validate(schema(name), put(base, c.key, value))).NotTo(Succeed(), "%s: %v", c.key, value)
	}
}

var _ = Describe("beside the schemas of the specification, ours", func() {
	It("takes and wants the same of results", func() {
		for _, version := range []string{"1.0.0", "0.4.0"} {
			base := object{"cniVersion": version}
			for _, c := range resultCases {
				expectAs("result", base, c)
			}
			whole := put(subjectOf("bridge").base, "prevResult", base)
			for _, c := range resultCases {
				c.key = "prevResult." + c.key
				expectAs("network", whole, c)
			}
		}
		for _, doc := range []any{parsed(`{}`), parsed(`{"ips": []}`), parsed(`[]`), "text"} {
			Expect(validate(schema("result"), doc)).NotTo(Succeed())
		}
	})

	It("takes and wants the same of configurations", Label("spec-schemas"), func() {
		for _, c := range networkCases {
			expectAs("network", subjectOf("bridge").base, c)
		}
		for _, key := range []string{"cniVersion", "name", "type"} {
			Expect(validate(schema("network"), merge(subjectOf("bridge").base, object{key: nil}))).NotTo(Succeed(), key)
		}
	})
})

// limit is what a schema says of the size of a key's value.
type limit struct {
	key  string
	most int
	unit string // of what the parser counts; empty for a schema's own words
}

// limits are those of all keys of a schema, at a path.
func limits(node object, path string) (all []limit) {
	for name, inner := range asObject(node["properties"]) {
		all = append(all, limits(asObject(inner), strings.TrimPrefix(path+"."+name, "."))...)
	}
	if most := number(node["maxItems"]); most > 0 {
		all = append(all, limit{path, most, "elements"})
		if !strings.HasSuffix(path, "[]") {
			all = append(all, limits(asObject(node["items"]), path+"[]")...)
		}
	}
	isFree := node["pattern"] == nil && node["anyOf"] == nil && node["enum"] == nil
	if most := number(node["maxLength"]); most > 0 && isFree {
		all = append(all, limit{path, most, "bytes"})
	}
	return all
}

func number(v any) int {
	text, _ := v.(json.Number)
	n, _ := strconv.Atoi(text.String())
	return n
}

func asObject(v any) object {
	o, _ := v.(object)
	return o
}

// tooMuch is one element or byte more than the limit.
func (l limit) tooMuch() any {
	if l.unit == "bytes" {
		return strings.Repeat("a", l.most+1)
	}
	return make([]any, l.most+1)
}

var _ = Describe("the sizes of values", Label("sizes"), func() {
	for table := range tables() {
		if subjectOf(table).plugin != table {
			continue
		}
		It("are limited by the schema, --check-config and ADD: "+table, func() {
			s := subjectOf(table)
			all := limits(asObject(parsed(read(root("docs", "schema", table+".json")))), "")
			slices.SortFunc(all, func(a, b limit) int { return strings.Compare(a.key, b.key) })
			for _, l := range all {
				if l.key == "ipam.type" { // it says whose configuration it is
					continue
				}
				doc := put(s.base, l.key, l.tooMuch())
				s.expectRefused(doc)
				report, _ := checkConfig(s.plugin, plugintest.Text(doc))
				key := strings.ReplaceAll(l.key, "[]", "[0]")
				says := fmt.Sprintf("has %d %s, more than %d", l.most+1, l.unit, l.most)
				Expect(string(report)).To(And(ContainSubstring("error: "+key+": "), ContainSubstring(says)), key)
			}
		})
	}
})
