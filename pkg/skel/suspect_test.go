package skel_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("--check-config, of what is no error and hardly meant,", func() {
	It("of an IPAM plugin checks also what runs it by itself, and says that this is not the way", func() {
		p := picky()
		p.IPAM = true
		Expect(checked(p, list(`{"type": "probe", "vlan": 5000}`))).To(Equal(answer{code: 1, stdout: "error: plugins[0].vlan: 5000 is too great\n    vlan: VLAN ID\n" +
			"warning: plugins[0].ipam.type: is not \"probe\", by which other plugins run this one\n    write \"ipam\": {\"type\": \"probe\"}\n" +
			"probe: 1 error, 1 warning in plugins[0] and the keys of the list\n"}))
	})

	DescribeTable("exits with 3 when nothing is there for the plugin, and says what may have been meant:", func(ipam bool, conf, want string) {
		p := picky()
		p.IPAM = ipam
		a := checked(p, conf)
		Expect(a.stdout).To(Equal(want + "; nothing of probe was there to be checked\n"))
		Expect(a.code).To(Equal(3))
	},
		Entry("a list", false, list(`{"type": "other"}`), "note: plugins: has no entry for probe\nprobe: 0 errors, 0 warnings"),
		Entry("a configuration", false, `{"cniVersion": "1.0.0", "name": "n", "type": "other"}`, "note: this is no configuration of probe\nprobe: 0 errors, 0 warnings"),
		Entry("two letters swapped", false, list(`{"type": "prboe"}`), "warning: plugins[0].type: is \"prboe\", which was not checked\n    did you mean \"probe\"?\n"+
			"note: plugins: has no entry for probe\nprobe: 0 errors, 1 warning"),
		Entry("another case", false, `{"cniVersion": "1.0.0", "name": "n", "type": "Probe"}`, "warning: type: is \"Probe\", which was not checked\n    did you mean \"probe\"?\n"+
			"note: this is no configuration of probe\nprobe: 0 errors, 1 warning"),
		Entry("an IPAM plugin, a list", true, list(`{"type": "other"}`), "note: plugins: has no entry with ipam.type \"probe\"\nprobe: 0 errors, 0 warnings"),
		Entry("an IPAM plugin, a letter left out", true, `{"cniVersion": "1.0.0", "name": "n", "type": "other", "ipam": {"type": "prbe"}}`,
			"warning: ipam.type: is \"prbe\", which was not checked\n    did you mean \"probe\"?\nnote: there is no ipam.type \"probe\"\nprobe: 0 errors, 1 warning"),
		Entry("an IPAM plugin, another letter in ipam", true, list(`{"type": "other", "impam": {"type": "probe"}}`),
			"warning: plugins[0].impam: is unknown and ignored\n    did you mean \"ipam\"?\nnote: plugins: has no entry with ipam.type \"probe\"\nprobe: 0 errors, 1 warning"),
	)

	DescribeTable("tells who checks ipam:", func(ipam, want string) {
		a := checked(picky(), list(`{"type": "probe", "capabilities": {"portMappings": true}, "ipam": `+ipam+`}`))
		Expect(a.stdout).To(HavePrefix(want))
	},
		Entry("its plugin", `{"type": "other"}`, "note: plugins[0].ipam: is checked by its own plugin: other --check-config\nprobe: 0 errors"),
		Entry("nobody", `{"subnet": "x"}`, "warning: plugins[0].ipam: has no type: nobody reads it, and no addresses are asked for\n    write \"type\": \"host-local\", for example\n"),
		Entry("nobody, by a typing error", `{"tpye": "other"}`, "warning: plugins[0].ipam: has no type: nobody reads it, and no addresses are asked for\n    did you mean \"type\"?\n"),
		Entry("layer 2", `{}`, "probe: 0 errors, 0 warnings"),
	)

	It("does not send anybody to the IPAM plugin of a plugin that has none, or to one that cannot be", func() {
		p := picky()
		p.Config = Common{}
		Expect(checked(p, list(`{"type": "probe", "capabilities": {"portMappings": true}, "ipam": {"type": "x"}}`)).stdout).To(HavePrefix("probe: 0 errors"))
		Expect(checked(picky(), list(`{"type": "probe", "ipam": {"type": "probe"}}`)).stdout).NotTo(ContainSubstring("note:"))
	})

	DescribeTable("warns of keys beside plugins, which no plugin is given:", func(key, want string) {
		Expect(checked(picky(), strings.Replace(list(probeEntry), "{", `{"`+key+`": null, `, 1)).stdout).To(HavePrefix(want))
	},
		Entry("the plugin's", "vlan", "warning: vlan: is given to no plugin, since it stands beside plugins\n    it belongs into an entry of plugins\n"),
		Entry("everybody's", "capabilities", "warning: capabilities: is given to no plugin"),
		Entry("everybody's", "ipMasq", "warning: ipMasq: is given to no plugin"),
		Entry("of a runtime", "args", "probe: 0 errors, 0 warnings"),
		Entry("of a runtime", "nerdctlID", "probe: 0 errors, 0 warnings"),
	)

	DescribeTable("warns of keys that are there more than once, and quotes the value that counts:", func(keys, want string) {
		Expect(checked(picky(), `{"cniVersion": "1.0.0", "name": "n", "type": "probe", "capabilities": {"portMappings": true}, `+keys+`}`).stdout).To(Equal(want))
	},
		Entry("the last one of a key", `"vlan": 5000, "vlan": 5`,
			"warning: vlan: is there more than once\n    leave one of them: which one counts is not the same everywhere\nprobe: 0 errors, 1 warning\n"),
		Entry("in another case", `"vlan": 5, "VLAN": 5000`,
			"error: vlan: 5000 is too great\n    vlan: VLAN ID\nwarning: VLAN: is the same key as \"vlan\", which is there too\n"+
				"    leave one of them: which one counts is not the same everywhere\nprobe: 1 error, 1 warning\n"),
		Entry("twice in a wrong case", `"Vlan": 5, "VLAN": 5000`,
			"error: vlan: 5000 is too great\n    vlan: VLAN ID\nwarning: VLAN: is read in spite of its case\n    did you mean \"vlan\"?\n"+
				"warning: Vlan: is the same key as \"VLAN\", which is there too\n    leave one of them: which one counts is not the same everywhere\nprobe: 1 error, 2 warnings\n"),
		Entry("one that is no number", `"vlan": "x", "vlan": 5`,
			"error: vlan: \"x\" is a JSON string, want a whole number\n    vlan: VLAN ID\nwarning: vlan: is there more than once\n"+
				"    leave one of them: which one counts is not the same everywhere\nprobe: 1 error, 1 warning\n"),
		Entry("objects, which are merged", `"ipam": {"type": "probe"}, "ipam": {}`,
			"error: ipam.type: \"probe\" is this plugin itself, which gives no addresses\n    name an IPAM plugin, host-local for example\n"+
				"warning: ipam: is there more than once\n    leave one of them: which one counts is not the same everywhere\nprobe: 1 error, 1 warning\n"),
		Entry("in lists", `"vlanTrunk": [{}, {"id": 1, "id": 2}], "x": {"a.b": [{"y": 1, "y": 1, "y": 1}]}`,
			"warning: x: is unknown and ignored\nwarning: vlanTrunk[1].id: is there more than once\n    leave one of them: which one counts is not the same everywhere\n"+
				"warning: x[\"a.b\"][0].y: is there more than once\n    leave one of them: which one counts is not the same everywhere\nprobe: 0 errors, 3 warnings\n"),
	)

	It("quotes what the runtime would hand out, where a list has a key twice", func() {
		Expect(checked(picky(), list(`{"type": "probe", "capabilities": {"portMappings": true}, "vlan": 5000, "VLAN": 5}`)).stdout).
			To(HavePrefix("error: plugins[0].vlan: 5000 is too great\n"))
	})

	It("of capabilities knows that their case counts", func() {
		Expect(checked(picky(), list(`{"type": "probe", "capabilities": {"portmappings": true}}`)).stdout).
			To(HavePrefix("warning: plugins[0].capabilities.portmappings: is unknown and ignored\n    did you mean \"capabilities.portMappings\"?\n"))
	})
})
