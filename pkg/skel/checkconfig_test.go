package skel_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// picky is a plugin that refuses some things.
func picky() skel.Plugin[any] {
	p := probe(func(*skel.Request) error { return errHandler })
	p.Config = wireConfig{}
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

const probeEntry = `{"type": "probe", "capabilities": {"portMappings": true}}`

var _ = Describe("--check-config", func() {
	It("has nothing to say about what is good, and exits with status 0", func() {
		a := checked(picky(), list(probeEntry))
		Expect(a).To(Equal(answer{stdout: "probe: 0 errors, 0 warnings in plugins[0] and the keys of the list\n"}))
		a = checked(picky(), `{"cniVersion": "0.4.0", "name": "n", "type": "probe", "runtimeConfig": {"portMappings": []}}`)
		Expect(a).To(Equal(answer{stdout: "probe: 0 errors, 0 warnings\n"}))
	})

	It("quotes a value on one line, however it is laid out", func() {
		a := checked(picky(), list(`{"type": "probe", "capabilities": [
			"portMappings"
		]}`))
		Expect(a.stdout).To(HavePrefix(`error: plugins[0].capabilities: ["portMappings"] is a JSON array, want an object` + "\n"))
	})

	It("says everything that is wrong in its entries and in the list, with value, reason and suggestion, and exits with 1", func() {
		a := checked(picky(), `{"cniVersion": "9.9", "name": "a b", "disableCheck": 1, "disablegc": true, "plugins": [
			{"type": "other", "vlan": "x", "capabilities": {"mac": "yes"}},
			{"type": "probe", "vlan": 5000, "mtu": "1400", "bridge": "none", "isGatway": true, "odd": 1, "MTU": "1",
			 "vlanTrunk": [{}, {"id": -1, "minId": 5}, 3], "ipam": {"type": "probe"}, "capabilities": {"portMapping": true}},
			{"ipam": {}}, {"type": "../x"}, 5]}`)
		Expect(strings.Split(a.stdout, "\n")).To(HaveExactElements(
			`error: name: "a b" is no network name (a letter or digit, then letters, digits, '_', '.', '-')`,
			`    name: the network, unique on this host`,
			`error: cniVersion: "9.9" is not supported`,
			`    supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0`,
			`error: disableCheck: 1 is neither true nor false`,
			`    disableCheck: the runtime calls no CHECK (false)`,
			`error: plugins[0].capabilities.mac: "yes" is a JSON string, want true or false`,
			`error: plugins[1].ipam.type: "probe" is this plugin itself, which gives no addresses`,
			`    name an IPAM plugin, host-local for example`,
			`error: plugins[1].MTU: "1" is a JSON string, want a whole number`,
			`    write 1`,
			`error: plugins[1].vlanTrunk[2]: 3 is a JSON number, want an object`,
			`    vlanTrunk: more VLANs`,
			`error: plugins[1].vlan: 5000 is too great`,
			`    vlan: VLAN ID`,
			`error: plugins[1].vlanTrunk[1].id: -1 is negative`,
			`    use 1`,
			`error: plugins[1].bridge: "none" cannot be made`,
			`    bridge: the bridge to attach to`,
			`error: plugins[2].type: missing; it names the plugin`,
			`    type: the plugin: a program in CNI_PATH`,
			`error: plugins[3].type: "../x" is no plugin name (it must be a plain file name)`,
			`    type: the plugin: a program in CNI_PATH`,
			`error: plugins[4]: 5 is no object`,
			`    plugins: the configurations, in the order of ADD`,
			`warning: disablegc: is unknown and ignored`,
			`    did you mean "disableGC"?`,
			`warning: plugins[1].MTU: is the same key as "mtu", which is there too`,
			`    leave one of them: which one counts is not the same everywhere`,
			`warning: plugins[1].isGatway: is unknown and ignored`,
			`    did you mean "isGateway"?`,
			`warning: plugins[1].odd: is unknown and ignored`,
			`warning: plugins[1].vlanTrunk[1].minId: is read in spite of its case`,
			`    did you mean "vlanTrunk[1].minID"?`,
			`warning: plugins[1].capabilities.portMapping: is unknown and ignored`,
			`    did you mean "capabilities.portMappings"?`,
			`probe: 13 errors, 6 warnings in plugins[1] and the keys of the list`,
			``))
		Expect(a.code).To(Equal(1))
	})

	It("says the same in JSON", func() {
		a := checked(picky(), list(`{"type": "probe", "vlanTrunk": [{"id": -1}], "bridge": "none", "x": 1}`), "--json")
		Expect(a.code).To(Equal(1))
		Expect(a.stdout).To(MatchJSON(`{"plugin": "probe", "checked": ["plugins[0]"], "findings": [
			{"level": "error", "code": 7, "key": "plugins[0].vlanTrunk[0].id", "value": -1, "reason": "is negative", "suggestion": "use 1"},
			{"level": "error", "code": 2, "key": "plugins[0].bridge", "value": "none", "reason": "cannot be made", "suggestion": "bridge: the bridge to attach to"},
			{"level": "warning", "key": "plugins[0].x", "reason": "is unknown and ignored"}]}`))
		Expect(checked(picky(), list(probeEntry), "--json").stdout).To(MatchJSON(`{"plugin": "probe", "checked": ["plugins[0]"], "findings": []}`))
	})

	DescribeTable("exits with 2 for what cannot be read", func(conf, want string) {
		a := checked(picky(), conf)
		Expect(a.code).To(Equal(2))
		Expect(a.stdout).To(Equal("error: network configuration: " + want + "\nprobe: 1 error, 0 warnings\n"))
		var doc struct{ Findings []struct{ Code int } }
		Expect(json.Unmarshal([]byte(checked(picky(), conf, "--json").stdout), &doc)).To(Succeed())
		Expect(doc.Findings).To(HaveLen(1))
	},
		Entry("nothing", "", "standard input is empty"),
		Entry("no JSON", "{\n  \"name\": \"x\",\n  }", "no valid JSON at line 3, column 3: invalid character '}' looking for beginning of object key string"),
		Entry("half of it", `{"name"`, "no valid JSON at line 1, column 7: unexpected end of JSON input"),
		Entry("null", "null", "is null, want an object"),
		Entry("no object", "[]", "is a JSON array, want an object"),
		Entry("a byte order mark", "\ufeff{}", "begins with a byte order mark; save it as UTF-8 without one"),
		Entry("UTF-16", "\xff\xfe{\x00}\x00", "is UTF-16; save it as UTF-8 without a byte order mark"),
		Entry("UTF-16 the other way round", "\xfe\xff\x00{\x00}", "is UTF-16; save it as UTF-8 without a byte order mark"),
	)

	It("takes no other arguments", func() {
		a := request{args: []string{"--check-config", "file"}}.run(picky())
		Expect([]any{a.code, a.stdout}).To(HaveExactElements(2, ""))
		Expect(a.stderr).To(HavePrefix(`probe: "file": --check-config takes --json and nothing else`))
	})

	DescribeTable("is the only one of its kind: another argument is refused with status 2, and what was meant is said", func(arg, meant string) {
		a := request{args: []string{arg}, conf: list(probeEntry)}.run(picky())
		Expect([]any{a.code, a.stdout}).To(HaveExactElements(2, ""))
		Expect(a.stderr).To(Equal(fmt.Sprintf("probe: %q is no option; there are --check-config [--json], --help and --version\n%s", arg, meant)))
	},
		Entry(nil, "--chek-config", "    did you mean --check-config?\n"),
		Entry(nil, "-check-config", "    did you mean --check-config?\n"),
		Entry(nil, "--helpp", "    did you mean --help?\n"),
		Entry(nil, "net.conflist", ""),
		Entry(nil, "--json", ""),
	)

	It("is for people: a runtime's arguments are ignored", func() {
		r := attach("VERSION")
		r.args = []string{"--chek-config"}
		Expect(r.run(picky()).code).To(BeZero())
	})

	It("reports that it cannot write", func() {
		var p skel.Plugin[any]
		Expect(skel.Run(GinkgoT().Context(), p, skel.Env{Args: []string{"--check-config"}, Stdin: strings.NewReader("{}"), Stdout: deaf{}})).To(Equal(2))
	})

	DescribeTable("checks a list for what any plugin can judge:", func(conf, want string) {
		Expect(checked(picky(), conf).stdout).To(ContainSubstring(want + "\n"))
	},
		Entry("no name", `{"cniVersion": "1.0.0", "plugins": [`+probeEntry+`]}`, "error: name: missing; the specification requires it"),
		Entry("no version", `{"name": "x", "plugins": [`+probeEntry+`]}`, "error: cniVersion: missing; the specification requires it"),
		Entry("versions instead", `{"cniVersions": ["1.0.0"], "name": "x", "plugins": [`+probeEntry+`]}`, "probe: 0 errors, 0 warnings in plugins[0] and the keys of the list"),
		Entry("a version that nobody speaks", `{"cniVersions": ["1.0.0", "1.9.0"], "name": "x", "plugins": [`+probeEntry+`]}`, `error: cniVersions[1]: "1.9.0" is not supported`),
		Entry("a version of the wrong type", `{"cniVersion": 1, "name": "x", "plugins": [`+probeEntry+`]}`, "error: cniVersion: 1 is a JSON number, want a string"),
		Entry("no entries", list(``), "error: plugins: has no entries"),
		Entry("no list of entries", `{"cniVersion": "1.0.0", "name": "x", "plugins": {}}`, "error: plugins: {} is a JSON object, want an array"),
		Entry("no entry of its own", list(`{"type": "other"}`), "note: plugins: has no entry for probe"),
		Entry("a switch as text, which libcni takes", `{"cniVersion": "1.0.0", "name": "x", "disableCheck": "True", "plugins": [`+probeEntry+`]}`, "probe: 0 errors, 0 warnings in plugins[0] and the keys of the list"),
		Entry("another text", `{"cniVersion": "1.0.0", "name": "x", "loadOnlyInlinedPlugins": "yes", "plugins": [`+probeEntry+`]}`, `error: loadOnlyInlinedPlugins: "yes" is neither true nor false`),
	)

	It("checks a configuration of its own for what the specification requires", func() {
		Expect(checked(picky(), `{"vlan": 5000}`).stdout).To(And(ContainSubstring("error: cniVersion: missing; the specification requires it\n"),
			ContainSubstring("error: name: missing; the specification requires it\n"), ContainSubstring("error: type: missing; the specification requires it\n"),
			HaveSuffix("note: this is no configuration of probe\nprobe: 3 errors, 0 warnings; nothing of probe was there to be checked\n")))
		Expect(checked(picky(), `{"cniVersion": "2.0", "name": "n", "type": "probe", "prevResult": {"ips": 5}, "runtimeConfig": {"portMappings": []}}`).stdout).
			To(HavePrefix("error: cniVersion: \"2.0\" is not supported\n"))
	})

	It("of an IPAM plugin checks the entries that name it, and not what else is in them", func() {
		p := picky()
		p.IPAM = true
		a := checked(p, list(`{"type": "bridge", "isGatway": true, "ipam": {"type": "probe", "Ranges": [[{"subnett": ""}]]}}, {"type": "x", "ipam": {"type": "dhcp"}}`))
		Expect(a.stdout).To(Equal("warning: plugins[0].ipam.Ranges: is read in spite of its case\n    did you mean \"ipam.ranges\"?\n" +
			"probe: 0 errors, 1 warning in plugins[0] and the keys of the list\n"))
	})

	It("gives a plugin the list's name, and has an error about it once, where it is", func() {
		p := picky()
		p.Parse = func(r *skel.Request) (any, error) { return nil, cni.Refuse("name", r.Network, "is strange") }
		Expect(checked(p, list(probeEntry+","+probeEntry)).stdout).To(Equal("error: name: \"net1\" is strange\n    name: the network, unique on this host\n" +
			"probe: 1 error, 0 warnings in plugins[0], plugins[1] and the keys of the list\n"))
	})

	It("knows a list by a misspelt key", func() {
		for _, key := range []string{"Plugins", "plugin", "pluigns"} {
			Expect(checked(picky(), strings.Replace(list(probeEntry), "plugins", key, 1))).To(Equal(answer{code: 1, stdout: "error: " + key +
				": is unknown, and there is neither plugins nor type\n    did you mean \"plugins\"?\nprobe: 1 error, 0 warnings; nothing of probe was there to be checked\n"}))
		}
	})

	It("does nothing to a terminal, whatever is in keys and values", func() {
		a := checked(picky(), list(`{"type": "probe", "capabilities": {"portMappings": true}, "\u001b[31mevil": 1, "x\u009by": 2, "bridge": "none", "mtu": "`+"\u009b\u202e"+`"}`))
		Expect(a.stdout).To(ContainSubstring("error: plugins[0].mtu: \"\\u009b\\u202e\" is a JSON string"))
		Expect(a.stdout).To(ContainSubstring(`warning: plugins[0]["\x1b[31mevil"]: is unknown and ignored` + "\n"))
		Expect(a.stdout).To(ContainSubstring(`warning: plugins[0]["x\u009by"]: is unknown and ignored` + "\n"))
		Expect(strings.ContainsFunc(a.stdout, func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) })).To(BeFalse())
	})

	It("has complete sentences, also of what is there and counts as missing", func() {
		a := checked(picky(), `{"cniVersion": "", "name": "", "type": "probe", "vlan": 1.0, "mtu": 5000000000000000000000, "capabilities": {"portMappings": true}}`)
		Expect(a.stdout).To(HavePrefix("error: cniVersion: missing; the specification requires it\n"))
		Expect(a.stdout).To(ContainSubstring("\nerror: name: missing; the specification requires it\n"))
		Expect(a.stdout).To(ContainSubstring("\nerror: vlan: 1.0 is no whole number\n    write 1\n"))
		Expect(a.stdout).To(ContainSubstring("\nerror: mtu: 5000000000000000000000 is no whole number\n"))
	})

	It("prints no more of a value than fits", func() {
		a := checked(picky(), list(`{"type": "probe", "capabilities": {"portMappings": true}, "mtu": "`+strings.Repeat("x", 500)+`"}`))
		Expect(a.stdout).To(HavePrefix(`error: plugins[0].mtu: "` + strings.Repeat("x", 79) + `... is a JSON string`))
	})

	It("finds values by keys with odd names", func() {
		p := picky()
		p.Parse = func(*skel.Request) (any, error) { return nil, cni.Refuse(`odd["a.b]"][1].x`, "there", "is bad") }
		a := checked(p, list(`{"type": "probe", "capabilities": {"portMappings": true}, "odd": {"a.b]": [0, {"X": "here"}]}}`))
		Expect(a.stdout).To(HavePrefix(`error: plugins[0].odd["a.b]"][1].x: "here" is bad`))
	})
})

var _ = Describe("ADD", func() {
	conf := `{"cniVersion": "1.1.0", "name": "a b", "ipam": {"type": "probe"}, "prevResult": {"ips": 5}, "vlan": 5000, "mtu": "x"}`

	It("reports at once what every plugin refuses and what this one does", func() {
		for _, command := range []string{"ADD", "CHECK"} {
			r := attach(command)
			r.conf = conf
			doc := r.run(picky()).expectError(cni.CodeConfig, HavePrefix(`name: "a b" is no network name`))
			Expect(doc["details"]).To(And(HavePrefix(`ipam.type: "probe" is this plugin itself, which gives no addresses; prevResult.ips: `),
				HaveSuffix(`; mtu: is a JSON string, want a whole number; vlan: 5000 is too great`)))
		}
	})

	It("has the code of the first problem", func() {
		r := attach("ADD")
		r.conf = `{"cniVersion": "1.1.0", "name": 5, "bridge": "none"}`
		doc := r.run(picky()).expectError(cni.CodeConfig, "name: is a JSON number, want a string")
		Expect(doc["details"]).To(Equal(`bridge: "none" cannot be made`))
	})

	It("is the only one, with CHECK and STATUS: DEL does not look", func() {
		r := attach("DEL")
		r.conf = `{"cniVersion": "1.1.0", "name": "a b", "vlan": 5000}`
		Expect(r.run(picky()).expectError(cni.CodeConfig, HavePrefix("name:"))).NotTo(HaveKey("details"))
	})
})

// deaf is a standard output that nobody reads.
type deaf struct{}

func (deaf) Write([]byte) (int, error) { return 0, errHandler }
