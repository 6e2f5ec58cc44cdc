package skel_test

import (
	"fmt"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is a plugin's configuration.
type wireConfig struct {
	Common
	Bridge    string  `json:"bridge" help:"the bridge to attach to"`
	IsGateway bool    `json:"isGateway" help:"give the bridge an address"`
	MTU       int     `json:"mtu" help:"bytes"`
	VLAN      int     `json:"vlan" help:"VLAN ID"`
	DNS       cni.DNS `json:"dns"`
	Trunk     []struct {
		ID    int `json:"id" help:"one ID"`
		MinID int `json:"minID" help:"the first ID"`
	} `json:"vlanTrunk" help:"more VLANs"`
	IPAM *struct {
		Type   string `json:"type"`
		Ranges [][]struct {
			Subnet     string `json:"subnet" help:"CIDR"`
			RangeStart string `json:"rangeStart" help:"first address"`
		} `json:"ranges" help:"sets of ranges"`
	} `json:"ipam"`
	RuntimeConfig struct {
		PortMappings []struct {
			HostPort int `json:"hostPort"`
		} `json:"portMappings"`
	} `json:"runtimeConfig"`
	hidden int
	Unread string `json:"-"`
}

// Common is embedded.
type Common struct {
	MacSpoofChk bool `json:"macspoofchk" help:"drop frames with another MAC"`
}

var _ = Describe("the keys of a configuration", func() {
	plugin := probe(func(*skel.Request) error { return nil })
	plugin.Keys = wireConfig{hidden: 0}

	stderr := func(p skel.Plugin[any], keys string) string {
		GinkgoHelper()
		r := attach("ADD")
		r.conf = strings.TrimSuffix(conf1, "}") + ", " + keys + "}"
		a := r.run(p)
		Expect(a.code).To(BeZero(), a.stdout)
		return a.stderr
	}

	DescribeTable("that look like one that is read: did you mean", Label("did-you-mean"), func(keys, want string) {
		Expect(stderr(plugin, keys)).To(Equal("probe: " + want + "\n"))
	},
		Entry("a letter left out", `"isGatway": true`,
			`key "isGatway" is unknown and ignored: did you mean "isGateway"?`),
		Entry("a letter too many", `"bridgee": ""`, `key "bridgee" is unknown and ignored: did you mean "bridge"?`),
		Entry("a letter for another", `"macspoofchc": true`,
			`key "macspoofchc" is unknown and ignored: did you mean "macspoofchk"?`),
		Entry("two letters swapped", `"brigde": ""`, `key "brigde" is unknown and ignored: did you mean "bridge"?`),
		Entry("two letters, in a long key", `"isGtway": true`,
			`key "isGtway" is unknown and ignored: did you mean "isGateway"?`),
		Entry("a letter, in a short key", `"vlam": 5`, `key "vlam" is unknown and ignored: did you mean "vlan"?`),
		Entry("the case", `"BRIDGE": ""`, `key "BRIDGE": did you mean "bridge"? It is read as that`),
		Entry("the case, in a very short key", `"MTU": 5`, `key "MTU": did you mean "mtu"? It is read as that`),
		Entry("a key of the protocol", `"capabilites": {}`,
			`key "capabilites" is unknown and ignored: did you mean "capabilities"?`),
		Entry("in an object", `"dns": {"nameserver": []}`,
			`key "dns.nameserver" is unknown and ignored: did you mean "dns.nameservers"?`),
		Entry("in a list", `"vlanTrunk": [{"id": 1}, {"minId": 5}]`,
			`key "vlanTrunk[1].minId": did you mean "vlanTrunk[1].minID"? It is read as that`),
	)

	DescribeTable("are not commented on", func(keys string) {
		Expect(stderr(plugin, keys)).To(BeEmpty())
	},
		Entry("as they should be",
			`"bridge": "", "isGateway": true, "mtu": 5, "vlan": 5, "dns": {"nameservers": []},
				"vlanTrunk": [{"minID": 5}]`),
		Entry("unrelated", `"keyA": ["some more"], "loadOnlyInlinedPlugins": true, "x": 1`),
		Entry("two letters, in a short key", `"vlxy": 5, "brdgx": ""`),
		Entry("a letter, in a very short key", `"mtx": 5, "mt": 1, "mtus": 1`),
		Entry("three letters", `"bri": "", "isGatXXX": true`),
		Entry("of the protocol",
			`"cniVersions": [], "args": {"cni": {"x": 1}}, "capabilities": {"portMapping": true}, "runtimeConfig": {},
				"disableCheck": true, "disableGC": true, "ipMasq": true, "cni.dev/valid-attachments": []`),
		Entry("the runtime's, in any case",
			`"runtimeConfig": {"PortMappings": [{"HostPort": 8080}], "portMapping": []}`),
		Entry("the IPAM plugin's", `"ipam": {"type": "x", "range": [], "ranges": [[{"subnett": "x"}]]}`),
		Entry("of values of another type", `"vlanTrunk": 5, "dns": [5], "x": {"bridgee": 1}`),
		Entry("very long", fmt.Sprintf("%q: 1", "bridge"+strings.Repeat("e", 1<<20))),
	)

	It("of the other plugin are nothing to an IPAM plugin, its own are", func() {
		ipam := plugin
		ipam.IPAM = true
		Expect(stderr(ipam,
			`"bridgee": "", "isGatway": true, "dns": {}, "MTU": 5,
				"ipam": {"type": "x", "ranges": [[{"subnet": "x"}], [{}, {"subnett": "y", "RangeStart": "z"}]]}`)).
			To(Equal(`probe: key "ipam.ranges[1][1].RangeStart": ` +
				`did you mean "ipam.ranges[1][1].rangeStart"? It is read as that` + "\n" +
				`probe: key "ipam.ranges[1][1].subnett" is unknown and ignored: ` +
				`did you mean "ipam.ranges[1][1].subnet"?` + "\n"))
	})

	It("are commented on once, by ADD", func() {
		r := attach("CHECK")
		r.conf = `{"cniVersion": "1.1.0", "name": "x", "bridgee": ""}`
		for _, command := range []string{"CHECK", "DEL", "STATUS"} {
			r.command = command
			r.run(plugin).expectSilence()
		}
	})

	It("may be nested very deep", func() {
		Expect(stderr(plugin, `"vlanTrunk": `+strings.Repeat("[", 9000)+strings.Repeat("]", 9000))).To(BeEmpty())
	})
})

var _ = Describe("for a person", func() {
	plugin := forbidden()
	plugin.Keys = wireConfig{}
	text := And(ContainSubstring("probe "), ContainSubstring("does nothing"),
		ContainSubstring("0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"), ContainSubstring("CNI_COMMAND"),
		MatchRegexp(`\n  bridge +the bridge to attach to\n`), MatchRegexp(`\n  macspoofchk +drop`),
		MatchRegexp(`\n  vlanTrunk\[\]\.minID +the first ID\n`),
		MatchRegexp(`\n  ipam\.ranges\[\]\[\]\.rangeStart +first address\n`), Not(ContainSubstring("hostPort")))

	It("--help tells what it is, which versions it speaks and which keys it takes", func() {
		for _, arg := range []string{"--help", "-h", "-help", "help"} {
			a := request{args: []string{arg}}.run(plugin)
			Expect(a.stdout).To(text)
			Expect([]any{a.code, a.stderr}).To(HaveExactElements(0, ""))
		}
	})

	It("so does a plain call, on standard error, behind the line that programs read", func() {
		a := request{}.run(plugin)
		Expect(a.stderr).To(And(HavePrefix("CNI probe plugin v1.9.1+hawser.unknown\n"), text))
		Expect([]any{a.code, a.stdout}).To(HaveExactElements(0, ""))
	})

	// What clients make of the line is in test/clients: nerdctl reads it, and Nomad the first word that is a version.
	DescribeTable("a plain call tells programs the reference's version, not ours", Label("version-people"), func(
		own, says string,
	) {
		DeferCleanup(skel.SetVersion(own))
		a := request{}.run(plugin)
		Expect(a.stdout).To(BeEmpty())
		Expect(a.stderr).To(HavePrefix("CNI probe plugin " + says + "\n"))
	},
		Entry("a release", "0.1.0", "v1.9.1+hawser.0.1.0"), Entry("none", "unknown", "v1.9.1+hawser.unknown"),
		Entry("a commit", "0.1.0-dev+g0123456789ab.dirty", "v1.9.1+hawser.0.1.0-dev.g0123456789ab.dirty"),
	)

	It("--version tells the version", func() {
		for _, arg := range []string{"--version", "-version", "-V", "version"} {
			a := request{args: []string{arg}}.run(plugin)
			Expect(a).To(Equal(answer{stdout: "probe unknown (CNI 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0)\n"}))
		}
	})
})

var _ = Describe("VERSION", func() {
	const all = `"supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}` + "\n"

	DescribeTable("answers in the version that it was asked in, whatever else is there", Label("version-verb"), func(
		conf, version string,
	) {
		for _, r := range []request{
			{command: "VERSION", conf: conf},
			{command: "VERSION", conf: conf, id: "../x", ifname: "a/b", netns: "dummy"},
		} {
			Expect(r.run(forbidden())).To(Equal(answer{stdout: `{"cniVersion":"` + version + `",` + all}))
		}
	},
		Entry("one", `{"cniVersion": "0.4.0"}`, "0.4.0"),
		Entry("in any case", `{"CNIVersion": "0.3.1"}`, "0.3.1"),
		Entry("one that we do not speak", `{"cniVersion": "9.9.9"}`, "9.9.9"),
		Entry("a whole configuration", `{"name": "../x", "type": 5, "cniVersion": "1.0.0", "prevResult": 5}`, "1.0.0"),
		Entry("with more after it", `{"cniVersion": "1.0.0"} x`, "1.0.0"),
		Entry("none", `{}`, "1.1.0"), Entry("an empty one", `{"cniVersion": ""}`, "1.1.0"), Entry("null", `null`,
			"1.1.0"),
		Entry("nothing", ``, "1.1.0"), Entry("text", `hello`, "1.1.0"), Entry("a cut", `{"cniVersion": "1.0.0"`,
			"1.1.0"),
		Entry("of another type", `{"cniVersion": 1}`, "1.1.0"), Entry("a list", `[]`, "1.1.0"),
	)

	It("does not wait for the end of its input", func() {
		r, w, err := os.Pipe()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Close)
		Expect(w.WriteString(`{"cniVersion": "0.4.0"}`)).To(BeNumerically(">", 0))
		Expect(request{command: "VERSION", stdin: r}.run(forbidden()).document()).To(HaveKeyWithValue("cniVersion",
			"0.4.0"))
	})

	It("answers although nothing comes", func() {
		r, w, err := os.Pipe()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Close)
		refused := make(chan int, 1)
		go func() { refused <- request{command: "add", stdin: r}.run(forbidden()).code }()
		Expect(request{command: "VERSION", stdin: r}.run(forbidden()).document()).To(HaveKeyWithValue("cniVersion",
			"1.1.0"))
		Eventually(refused).Should(Receive(Equal(1)))
	})
})
