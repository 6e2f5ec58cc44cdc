package skel_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// picky is a plugin that refuses some things.
func picky() skel.Plugin[any] {
	p := probe(func(*skel.Request) error { return errHandler })
	p.Keys = wireConfig{}
	p.Parse = func(req *skel.Request) (any, error) {
		var w wireConfig
		var all cni.Problems
		all.Add(req.Decode(&w))
		if w.VLAN > 4094 {
			all.Add(cni.Refuse("vlan", w.VLAN, "is too great"))
		}
		for i, t := range w.Trunk {
			if t.ID < 0 {
				all.Add(cni.Refuse("vlanTrunk["+string(rune('0'+i))+"].id", t.ID, "is negative").Suggest("use 1"))
			}
		}
		if w.Bridge == "none" {
			all.Add(cni.Refuse("bridge", w.Bridge, "cannot be made").WithCode(cni.CodeUnsupportedField))
		}
		return w, all.Err()
	}
	return p
}

// checked runs --check-config.
func checked(p skel.Plugin[any], conf string, args ...string) answer {
	GinkgoHelper()
	a := request{args: append([]string{"--check-config"}, args...), conf: conf}.run(p)
	Expect(a.stderr).To(BeEmpty())
	return a
}

// list is a list with the entries in it.
func list(entries string) string {
	return `{"cniVersion": "1.1.0", "name": "net1", "plugins": [` + entries + `]}`
}

const probeEntry = `{"type": "probe", "bridge": "br0"}`

var _ = Describe("--check-config", func() {
	It("has nothing to say about what is good, and exits with status 0", func() {
		good := answer{stdout: "probe: valid\n"}
		Expect(checked(picky(), list(probeEntry))).To(Equal(good))
		Expect(checked(picky(), `{"cniVersion": "0.4.0", "name": "n", "type": "probe"}`)).To(Equal(good))
	})

	It("says everything that is wrong in its entries, with key, value, reason and suggestion, and exits with 1",
		Label("all-values"), func() {
			a := checked(picky(), list(`{"type": "other", "vlan": 5000},
			{"type": "probe", "vlan": 5000, "ipam": {"type": "probe"}, "vlanTrunk": [{"minId": 5}, {"id": -1}],
			 "bridge": "none", "isGatway": true, "odd": 1},
			{"type": "probe", "mtu": "1"}`))
			Expect(strings.Split(a.stdout, "\n")).To(HaveExactElements(
				`error: plugins[1].ipam.type: "probe" is this plugin itself, which gives no addresses`,
				`    name an IPAM plugin, host-local for example`,
				`error: plugins[1].vlan: 5000 is too great`,
				`error: plugins[1].vlanTrunk[1].id: -1 is negative`,
				`    use 1`,
				`error: plugins[1].bridge: "none" cannot be made`,
				`warning: plugins[1].isGatway: is unknown and ignored`,
				`    did you mean "plugins[1].isGateway"?`,
				`warning: plugins[1].odd: is unknown and ignored`,
				`warning: plugins[1].vlanTrunk[0].minId: is read in spite of its case`,
				`    did you mean "plugins[1].vlanTrunk[0].minID"?`,
				`error: plugins[2].mtu: is a JSON string, want a whole number`,
				`probe: not valid`,
				``))
			Expect(a.code).To(Equal(1))
		})

	DescribeTable("exits with 2 for what cannot be read", func(conf, want string) {
		Expect(checked(picky(), conf)).To(Equal(answer{code: 2, stdout: "error: " + want + "\nprobe: not readable\n"}))
	},
		Entry("nothing", "", "network configuration: standard input is empty"),
		Entry("no JSON", `{"name"`, "network configuration: no valid JSON at byte 7: unexpected end of JSON input"),
		Entry("no object", "[]", "network configuration: is a JSON array, want an object"),
		Entry("no list of entries", `{"name": "x", "plugins": {}}`, "plugins: is no list of objects"),
		Entry("an entry that is none", list("5"), "plugins: is no list of objects"),
	)

	DescribeTable("exits with 3 when nothing in it is for the plugin", Label("check-config"), func(
		ipam bool, conf string,
	) {
		p := picky()
		p.IPAM = ipam
		Expect(checked(p, conf)).To(Equal(answer{code: 3, stdout: "probe: nothing here is for it\n"}))
	},
		Entry("a list", false, list(`{"type": "other"}, null`)),
		Entry("an empty list", false, list(``)),
		Entry("null", false, "null"),
		Entry("a configuration", false, `{"cniVersion": "1.0.0", "name": "n", "type": "other"}`),
		Entry("a plugin whose IPAM plugin has the name", false, list(`{"type": "other", "ipam": {"type": "probe"}}`)),
		Entry("an IPAM plugin", true, list(`{"type": "other", "ipam": {"type": "dhcp"}}`)),
	)

	It("of an IPAM plugin checks the entries that name it, and not what else is in them", func() {
		p := picky()
		p.IPAM = true
		a := checked(p,
			list(`{"type": "bridge", "isGatway": true, "ipam": {"type": "probe", "Ranges": [[{"subnett": ""}]]}}`))
		Expect(a).To(Equal(answer{stdout: "warning: plugins[0].ipam.Ranges: is read in spite of its case\n" +
			"    did you mean \"plugins[0].ipam.ranges\"?\nprobe: valid\n"}))
	})

	DescribeTable("gives the entries the list's name and version", func(keys, want string) {
		Expect(checked(picky(), `{`+keys+`, "plugins": [`+probeEntry+`]}`).stdout).To(ContainSubstring(want))
	},
		Entry("a bad name", `"cniVersion": "1.0.0", "name": "a b"`, `error: plugins[0].name: "a b" is no network name`),
		Entry("no name", `"cniVersion": "1.0.0"`, `error: plugins[0].name: "" is no network name`),
		Entry("a version that nobody speaks", `"cniVersion": "7", "name": "x"`,
			`error: plugins[0].cniVersion: "7" is not supported: incompatible CNI versions`),
		Entry("several versions", `"cniVersions": ["1.0.0"], "name": "x"`, "probe: valid"),
		Entry("no version", `"name": "x"`, "warning: plugins[0].cniVersion: is missing and taken for 0.1.0; "+
			"some runtimes refuse that\nprobe: valid"),
	)

	It("refuses an entry that is the first of a list and needs a plugin before it", Label("chained-first"), func() {
		p := picky()
		p.Chained = true
		Expect(checked(p, list(probeEntry))).To(Equal(answer{code: 1, stdout: `error: plugins[0].type: "probe" is ` +
			"the first of the list, and needs a plugin before it, which makes the interface\nprobe: not valid\n"}))
		Expect(checked(p, list(`{"type": "other"}, `+probeEntry)).code).To(BeZero())
		Expect(checked(p, `{"cniVersion": "0.4.0", "name": "n", "type": "probe"}`).code).To(BeZero())
	})

	It("is the only option of its kind: another argument is refused with status 2", Label("check-config"), func() {
		for _, arg := range []string{"--chek-config", "net.conflist", "--json"} {
			a := request{args: []string{arg}, conf: list(probeEntry)}.run(picky())
			Expect(a).To(Equal(answer{code: 2, stderr: fmt.Sprintf(
				"probe: %q is no option; there are --check-config, --help and --version\n", arg)}))
		}
	})

	It("stands beside the commands that a plugin has of its own", func() {
		p := picky()
		p.Commands = map[string]func(skel.Env) int{"serve": func(env skel.Env) int {
			fmt.Fprint(env.Stdout, env.Args[1:])
			return 5
		}}
		Expect(request{args: []string{"serve", "-v"}}.run(p)).To(Equal(answer{code: 5, stdout: "[-v]"}))
	})

	It("is for people: a runtime's arguments are ignored", func() {
		r := attach("VERSION")
		r.args = []string{"--chek-config"}
		Expect(r.run(picky()).code).To(BeZero())
	})

	It("does nothing to a terminal, whatever is in keys and values", func() {
		a := checked(picky(),
			list(`{"type": "probe", "\u001b[31mevil": 1, "x\u009by": 2, "bridge": "none",
				"mtu": "`+"\u009b\u202e"+`"}`))
		Expect(a.stdout).To(ContainSubstring(`warning: plugins[0]["\x1b[31mevil"]: is unknown and ignored` + "\n"))
		Expect(strings.ContainsFunc(a.stdout,
			func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) })).To(BeFalse())
	})
})

var _ = Describe("ADD", func() {
	conf := `{"cniVersion": "1.1.0", "name": "a b", "ipam": {"type": "probe"},
		"prevResult": {"ips": 5}, "vlan": 5000, "mtu": "x"}`

	It("reports at once what every plugin refuses and what this one does", Label("all-values"), func() {
		for _, command := range []string{"ADD", "CHECK"} {
			r := attach(command)
			r.conf = conf
			doc := r.run(picky()).expectError(cni.CodeConfig, HavePrefix(`name: "a b" is no network name`))
			Expect(doc["details"]).To(And(
				HavePrefix(`ipam.type: "probe" is this plugin itself, which gives no addresses; prevResult.ips: `),
				HaveSuffix(`; mtu: is a JSON string, want a whole number; vlan: 5000 is too great`)))
		}
	})
})

var _ = Describe("docs/schema", func() {
	It("has network.json: a configuration or a list of them, each as its plugins want it", func() {
		entry, list := plugintest.SchemaOf(wireEntry{}), plugintest.SchemaOf(wireList{})
		entry["properties"].(object)["prevResult"] = object{"anyOf": []any{object{"type": "null"},
			object{"$ref": "result.json"}}}
		keys := list["properties"].(object)
		keys["plugins"].(object)["items"] = ref("#/$defs/plugin")
		list["anyOf"] = []any{plugintest.HasKey("cniVersion", object{"type": "string"}),
			plugintest.HasKey("cniVersions", object{"type": "array", "minItems": 1})}
		single := object{"required": []string{"cniVersion", "name"}, "allOf": []any{ref("#/$defs/plugin")},
			"properties": object{"cniVersion": keys["cniVersion"], "name": keys["name"]}}
		plugintest.ExpectSchema("network", "a network configuration, or a list of them (specification, section 1)",
			object{
				"if": object{"required": []string{"plugins"}}, "then": ref("#/$defs/list"),
				"else": ref("#/$defs/single"),
				"$defs": object{"entry": entry, "list": list, "single": single, "plugin": object{
					"allOf": slices.Concat([]any{ref("#/$defs/entry")}, whose("type", "main"), whose("type", "meta"),
						whose("ipam.type", "ipam"))}}})
	})
})

func ref(to string) object { return object{"$ref": to} }

// whose has each plugin of a kind judge the configurations that name it.
func whose(key, kind string) []any {
	GinkgoHelper()
	dirs := nstest.Must(filepath.Glob("../../plugins/" + kind + "/*"))
	Expect(dirs).NotTo(BeEmpty())
	var list []any
	for _, dir := range dirs {
		name := filepath.Base(dir)
		list = append(list, object{"if": plugintest.HasKey(key, object{"const": name}), "then": ref(name + ".json")})
	}
	return list
}

// wireList is a list of configurations (specification, section 1).
type wireList struct {
	CNIVersion             string            `json:"cniVersion" help:"version of the specification" schema:"enum=0.1.0|0.2.0|0.3.0|0.3.1|0.4.0|1.0.0|1.1.0"`
	CNIVersions            []string          `json:"cniVersions" help:"more versions, of which the runtime takes the newest that it knows" each:"enum=0.1.0|0.2.0|0.3.0|0.3.1|0.4.0|1.0.0|1.1.0"`
	Name                   string            `json:"name" help:"the network, unique on this host" schema:"required format=name"`
	DisableCheck           json.RawMessage   `json:"disableCheck" help:"the runtime calls no CHECK" default:"false" schema:"format=switch"`
	DisableGC              json.RawMessage   `json:"disableGC" help:"the runtime calls no GC" default:"false" schema:"format=switch"`
	LoadOnlyInlinedPlugins json.RawMessage   `json:"loadOnlyInlinedPlugins" help:"plugins is all; no directory of the network's name is read" default:"false" schema:"format=switch"`
	Plugins                []json.RawMessage `json:"plugins" help:"the configurations, in the order of ADD" schema:"required nonempty"`
}

// wireEntry is what runtimes themselves read of a configuration (specification, section 1).
type wireEntry struct {
	Type         *string         `json:"type" help:"the plugin: a program in CNI_PATH" schema:"required format=file"`
	CNIVersions  []string        `json:"cniVersions" help:"versions of the specification that the plugin speaks"`
	Capabilities map[string]bool `json:"capabilities" help:"what the runtime is to send in runtimeConfig"`
	IPAM         struct {
		Type string `json:"type" help:"the IPAM plugin: a program in CNI_PATH" schema:"format=file empty"`
	} `json:"ipam" help:"the IPAM plugin's part"`
	DNS           cni.DNS        `json:"dns" help:"resolver settings"`
	Args          map[string]any `json:"args" help:"more for plugins that understand it"`
	RuntimeConfig map[string]any `json:"runtimeConfig" help:"what the runtime sends, as capabilities ask"`
	PrevResult    map[string]any `json:"prevResult" help:"the result of the plugin before, which the runtime sends"`
}
