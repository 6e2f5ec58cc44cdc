package skel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
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
		Entry("the case", `"BRIDGE": ""`, `key "BRIDGE" is accepted in spite of its case: did you mean "bridge"?`),
		Entry("the case, in a very short key", `"MTU": 5`,
			`key "MTU" is accepted in spite of its case: did you mean "mtu"?`),
		Entry("a key of the protocol", `"capabilites": {}`,
			`key "capabilites" is unknown and ignored: did you mean "capabilities"?`),
		Entry("in an object", `"dns": {"nameserver": []}`,
			`key "dns.nameserver" is unknown and ignored: did you mean "dns.nameservers"?`),
		Entry("in a list", `"vlanTrunk": [{"id": 1}, {"minId": 5}]`,
			`key "vlanTrunk[1].minId" is accepted in spite of its case: did you mean "vlanTrunk[1].minID"?`),
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
			To(Equal(`probe: key "ipam.ranges[1][1].RangeStart" ` +
				`is accepted in spite of its case: did you mean "ipam.ranges[1][1].rangeStart"?` + "\n" +
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
		Expect(a.stderr).To(And(HavePrefix("CNI probe plugin "+skel.Reference+"+hawser.unknown\n"), text))
		Expect([]any{a.code, a.stdout}).To(HaveExactElements(0, ""))
	})

	// What clients make of the line is in test/clients: nerdctl reads it, and Nomad the first word that is a version.
	DescribeTable("a plain call tells programs the reference's version, not ours", Label("version-people"), func(
		own, says string,
	) {
		DeferCleanup(skel.SetVersion(own))
		a := request{}.run(plugin)
		Expect(a.stdout).To(BeEmpty())
		Expect(a.stderr).To(HavePrefix("CNI probe plugin " + skel.Reference + says + "\n"))
	},
		Entry("a release", "0.1.0", "+hawser.0.1.0"), Entry("none", "unknown", "+hawser.unknown"),
		Entry("a commit", "0.1.0-dev+g0123456789ab.dirty", "+hawser.0.1.0-dev.g0123456789ab.dirty"),
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

// lines are those of a log.
func lines(file string) (list []object) {
	GinkgoHelper()
	data := nstest.Must(os.ReadFile(file))
	Expect(string(data)).To(HaveSuffix("\n"))
	for text := range strings.Lines(string(data)) {
		var l object
		Expect(json.Unmarshal([]byte(text), &l)).To(Succeed(), text)
		list = append(list, l)
	}
	return list
}

var _ = Describe("the log", func() {
	var file string
	BeforeEach(func() { file = filepath.Join(GinkgoT().TempDir(), "log") })
	logged := func(r request) request {
		r.more = append(r.more, "HAWSER_LOG="+file)
		return r
	}

	It("has the warnings of a call", func() {
		p := probe(nil)
		p.Add = func(_ context.Context, req *skel.Request, _ any) (*cni.Result, error) {
			req.Warn("only %d left", 7)
			return &cni.Result{}, nil
		}
		logged(attach("ADD")).run(p).document()
		Expect(lines(file)[0]["warnings"]).To(Equal([]any{"only 7 left"}))
	})

	It("has a line of each call, with the result", func() {
		p := probe(nil)
		p.Add = func(context.Context, *skel.Request, any) (*cni.Result, error) {
			return &cni.Result{Interfaces: []cni.Interface{{Name: "eth0"}}, IPs: oneAddress().IPs}, nil
		}
		logged(attach("ADD")).run(p).document()
		l := lines(file)[0]
		at := nstest.Must(time.Parse(time.RFC3339, l["time"].(string)))
		Expect(at).To(BeTemporally("~", time.Now(), nstest.Patience(nstest.Hang)))
		Expect(l["ms"]).To(BeNumerically(">", 0))
		for _, key := range []string{"time", "ms", "pid"} {
			delete(l, key)
		}
		Expect(l).To(Equal(object{"plugin": "probe", "version": "unknown", "verb": "ADD", "cniVersion": "1.1.0",
			"network": "net1", "containerID": "c1", "ifname": "eth0",
			"result": object{"interfaces": []any{"eth0"}, "ips": []any{"10.0.0.5/24"}}}))
	})

	It("has one of calls that fail, panic, are stopped or are refused, and of VERSION", func() {
		fail := &cni.Error{Code: cni.CodeIO, Msg: "no", Details: "a delegate's words: token s3cr3t"}
		logged(attach("DEL")).run(probe(func(*skel.Request) error { return fail }))
		logged(attach("ADD")).run(probe(func(r *skel.Request) error {
			r.OnFail("nothing", func(context.Context) error { return errors.New("cannot") })
			panic("oh")
		}))
		ctx, stop := context.WithCancelCause(context.Background())
		stop(errors.New("told to"))
		logged(attach("ADD")).runIn(ctx, probe(func(*skel.Request) error { return nil }))
		logged(request{command: "ADD", conf: conf1}).run(forbidden())
		logged(request{command: "STATUS", conf: "{"}).run(forbidden())
		logged(request{command: "STATUS", conf: conf1}).run(probe(func(*skel.Request) error { return nil }))
		logged(request{command: "VERSION", conf: "{}"}).run(forbidden())
		list := lines(file)
		Expect(list).To(HaveLen(7))
		e := func(i int) object { return list[i]["error"].(object) }
		Expect(e(0)).To(Equal(object{"code": 5.0, "msg": "no"}))
		Expect(e(1)).To(HaveKeyWithValue("msg", "internal error: oh"))
		Expect(e(2)).To(Equal(object{"code": 11.0, "msg": "stopped: told to"}))
		Expect(e(3)).To(HaveKeyWithValue("code", 4.0))
		Expect(e(4)).To(HaveKeyWithValue("code", 6.0))
		Expect(list[5]).NotTo(Or(HaveKey("error"), HaveKey("result")))
		Expect(list[6]).To(HaveKeyWithValue("verb", "VERSION"))
	})

	It("has none of calls for people", func() {
		for _, arg := range []string{"--help", "--version", "--check-config"} {
			logged(request{args: []string{arg}, conf: conf1}).run(forbidden())
		}
		Expect(file).NotTo(BeAnExistingFile())
	})

	It("is the file in /var/log/hawser that the key names, unless the variable names another", func() {
		keyed := attach("ADD")
		Expect(unix.Mount("none", "/var/log", "tmpfs", 0, "")).To(Succeed())
		DeferCleanup(unix.Unmount, "/var/log", unix.MNT_DETACH)
		const named = "/var/log/hawser/x.log"
		keyed.conf = `{"cniVersion": "1.1.0", "name": "net1", "type": "probe", "log": "x.log"}`
		ok := probe(func(*skel.Request) error { return nil })
		keyed.run(ok).document()
		Expect(lines(named)).To(HaveLen(1))
		logged(keyed).run(ok).document()
		Expect(lines(named)).To(HaveLen(1))
		Expect(lines(file)).To(HaveLen(1))
		keyed.run(probe(func(*skel.Request) error { return errHandler }))
		Expect(lines(named)[1]).To(HaveKey("error"))
	})

	It("goes on where a full disk cut its first line, and with no file of another program", func() {
		keyed := attach("ADD")
		Expect(unix.Mount("none", "/var/log", "tmpfs", 0, "")).To(Succeed())
		DeferCleanup(unix.Unmount, "/var/log", unix.MNT_DETACH)
		keyed.conf = `{"cniVersion": "1.1.0", "name": "net1", "type": "probe", "log": "x.log"}`
		for _, begun := range []string{"", `{"ti`, `{"time":"2026`, `{"text`, "#", "\n"} {
			Expect(os.MkdirAll("/var/log/hawser", 0o700)).To(Succeed())
			Expect(os.WriteFile("/var/log/hawser/x.log", []byte(begun), 0o600)).To(Succeed())
			a := keyed.run(probe(func(*skel.Request) error { return nil }))
			data := nstest.Must(os.ReadFile("/var/log/hawser/x.log"))
			if strings.HasPrefix(begun, `{"text`) || begun == "#" || begun == "\n" {
				Expect(string(data)).To(Equal(begun))
				Expect(a.stderr).To(ContainSubstring("does not begin like a log; choose another name"))
			} else {
				Expect(string(data)).To(And(HavePrefix(begun+`{"time":`), HaveSuffix("\n")))
				Expect(a.stderr).To(BeEmpty())
			}
		}
	})

	DescribeTable("refuses a bad key in ADD, and goes without in DEL", func(value, reason string) {
		r := logged(attach("ADD"))
		r.conf = `{"cniVersion": "1.1.0", "name": "net1", "type": "probe", "log": ` + value + `}`
		r.run(forbidden()).expectError(cni.CodeConfig, HavePrefix("log: "+reason))
		r.command = "DEL"
		a := r.run(probe(func(*skel.Request) error { return nil }))
		Expect(a.code).To(BeZero())
		Expect(a.stderr).To(ContainSubstring("log: " + reason))
		Expect(lines(file)).To(HaveLen(2), "the administrator sees both")
	},
		Entry("an absolute path", `"/etc/ld.so.preload"`, `"/etc/ld.so.preload" is not a plain file name`),
		Entry("the path of the right file", `"/var/log/hawser/x"`, `"/var/log/hawser/x" is not a plain file name`),
		Entry("a relative path", `"../x"`, `"../x" is not a plain file name`),
		Entry("a directory", `".."`, `".." is not a plain file name`),
		Entry("white space", `"a b"`, `"a b" is not a plain file name`), Entry("a number", `5`, "is not a JSON string"),
	)

	It("has what somebody else chose in one line, and as no command to a terminal", func() {
		r := logged(attach("ADD"))
		for _, text := range []string{`"name": "a\n{}\u001b[0m"`, "\"name\": \"n\", \"log\": [\n\"\u009b0m\"]"} {
			r.conf = `{"cniVersion": "1.1.0", "type": "probe", ` + text + `}`
			r.run(forbidden())
		}
		data := nstest.Must(os.ReadFile(file))
		Expect(lines(file)).To(HaveLen(2))
		Expect(string(data)).NotTo(MatchRegexp("[\x00-\x09\x0b-\x1f\x7f-\u009f]"))
	})

	It("is its owner's alone", func() {
		logged(attach("ADD")).run(probe(func(*skel.Request) error { return nil })).document()
		st := nstest.Must(os.Stat(file))
		Expect(st.Mode()).To(Equal(os.FileMode(0o600)))
	})

	DescribeTable("that cannot be written is no reason to fail, and said once", func(prepare func()) {
		prepare()
		a := logged(attach("ADD")).run(probe(func(*skel.Request) error { return nil }))
		Expect(a.code).To(BeZero())
		Expect(a.stderr).To(MatchRegexp(`^probe: log ".*": .*; the call is not in the log\n$`))
	},
		Entry("a symbolic link", func() {
			target := file + ".target"
			Expect(os.WriteFile(target, nil, 0o600)).To(Succeed())
			Expect(os.Symlink(target, file)).To(Succeed())
			DeferCleanup(func() { Expect(os.ReadFile(target)).To(BeEmpty()) })
		}),
		Entry("a pipe that nobody reads", func() { Expect(unix.Mkfifo(file, 0o600)).To(Succeed()) }),
		Entry("a device", func() { file = "/dev/full" }), Entry("nowhere", func() { file += "/none/log" }),
		Entry("a relative path", func() { file = "relative" }),
	)
})

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
				`error: plugins[1].ipam.type: "probe" is this plugin itself, which does not provide addresses`,
				`    name an IPAM plugin, host-local for example`,
				`error: plugins[1].vlan: 5000 is too great`,
				`error: plugins[1].vlanTrunk[1].id: -1 is negative`,
				`    use 1`,
				`error: plugins[1].bridge: "none" cannot be made`,
				`warning: plugins[1].isGatway: is unknown and ignored`,
				`    did you mean "plugins[1].isGateway"?`,
				`warning: plugins[1].odd: is unknown and ignored`,
				`warning: plugins[1].vlanTrunk[0].minId: is accepted in spite of its case`,
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
		Entry("no JSON", `{"name"`, "network configuration: invalid JSON at byte 7: unexpected end of JSON input"),
		Entry("no object", "[]", "network configuration: is a JSON array, want an object"),
		Entry("no list of entries", `{"name": "x", "plugins": {}}`, "plugins: is not a list of objects"),
		Entry("an entry that is none", list("5"), "plugins: is not a list of objects"),
	)

	DescribeTable("exits with 3 when nothing in it is for the plugin", Label("check-config"), func(
		ipam bool, conf string,
	) {
		p := picky()
		p.IPAM = ipam
		Expect(checked(p, conf)).To(Equal(answer{code: 3, stdout: "probe: no entry for this plugin\n"}))
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
		Expect(a).To(Equal(answer{stdout: "warning: plugins[0].ipam.Ranges: is accepted in spite of its case\n" +
			"    did you mean \"plugins[0].ipam.ranges\"?\nprobe: valid\n"}))
	})

	DescribeTable("gives the entries the list's name and version", func(keys, want string) {
		Expect(checked(picky(), `{`+keys+`, "plugins": [`+probeEntry+`]}`).stdout).To(ContainSubstring(want))
	},
		Entry("a bad name", `"cniVersion": "1.0.0", "name": "a b"`,
			`error: plugins[0].name: "a b" is not a network name`),
		Entry("no name", `"cniVersion": "1.0.0"`, `error: plugins[0].name: "" is not a network name`),
		Entry("a version that nobody speaks", `"cniVersion": "7", "name": "x"`,
			`error: plugins[0].cniVersion: "7" is not supported: incompatible CNI versions`),
		Entry("several versions", `"cniVersions": ["1.0.0"], "name": "x"`, "probe: valid"),
		Entry("no version", `"name": "x"`, "warning: plugins[0].cniVersion: is missing, so it is 0.1.0; "+
			"some runtimes refuse that\nprobe: valid"),
	)

	It("takes a missing version for the oldest also next to a key of the wrong type", func() {
		Expect(checked(picky(), `{"name": 5, "type": "probe", "bridge": "br0"}`).stdout).To(Equal(
			"error: name: is a JSON number, want a string\n" +
				"warning: cniVersion: is missing, so it is 0.1.0; some runtimes refuse that\nprobe: not valid\n"))
	})

	It("refuses an entry that is the first of a list and needs a plugin before it", Label("chained-first"), func() {
		p := picky()
		p.Chained = true
		Expect(checked(p, list(probeEntry))).To(Equal(answer{code: 1, stdout: `error: plugins[0].type: "probe" is ` +
			"the first of the list, but needs a plugin before it that creates the interface\nprobe: not valid\n"}))
		Expect(checked(p, list(`{"type": "other"}, `+probeEntry)).code).To(BeZero())
		Expect(checked(p, `{"cniVersion": "0.4.0", "name": "n", "type": "probe"}`).code).To(BeZero())
	})

	Describe("of entries whose type ends in the plugin's name", Label("other-name"), func() {
		named := func(called, path, entry string) answer {
			GinkgoHelper()
			p := picky()
			p.IPAM = true
			return request{called: called, more: []string{"CNI_PATH=" + path}, args: []string{"--check-config"},
				conf: list(entry)}.run(p)
		}
		const own = `{"type": "x-probe", "bridge": "none"}`
		const inIPAM = `{"type": "other", "ipam": {"type": "x-probe", "odd": 1}}`

		It("checks one that has the name by which the program was called", func() {
			Expect(named("x-probe", "", own).stdout).To(ContainSubstring(`plugins[0].bridge: "none" cannot be made`))
			Expect(named("x-probe", "", inIPAM).stdout).To(ContainSubstring("plugins[0].ipam.odd: is unknown"))
		})

		It("checks one whose file in CNI_PATH is the running program", func() {
			dir := GinkgoT().TempDir()
			Expect(os.Symlink("/proc/self/exe", filepath.Join(dir, "x-probe"))).To(Succeed())
			path := GinkgoT().TempDir() + ":" + dir
			Expect(named("probe", path, own).stdout).To(ContainSubstring(`plugins[0].bridge: "none" cannot be made`))
			Expect(named("probe", path, inIPAM).stdout).To(ContainSubstring("plugins[0].ipam.odd: is unknown"))
		})

		It("leaves other projects' plugins alone", func() {
			dir := GinkgoT().TempDir()
			Expect(os.WriteFile(filepath.Join(dir, "x-probe"), nil, 0o755)).To(Succeed())
			nothing := answer{code: 3, stdout: "probe: no entry for this plugin\n"}
			for _, path := range []string{"", dir} {
				Expect(named("probe", path, own)).To(Equal(nothing))
				Expect(named("y-probe", path, inIPAM)).To(Equal(nothing))
			}
			p := picky()
			p.Name = "tap"
			Expect(request{called: "x-tc-redirect-tap", args: []string{"--check-config"},
				conf: list(`{"type": "x-tc-redirect-tap"}`)}.run(p).code).To(Equal(3), "it is another plugin's name")
		})
	})

	It("is the only option of its kind: another argument is refused with status 2", Label("check-config"), func() {
		for _, arg := range []string{"--chek-config", "net.conflist", "--json"} {
			a := request{args: []string{arg}, conf: list(probeEntry)}.run(picky())
			Expect(a).To(Equal(answer{code: 2, stderr: fmt.Sprintf(
				"probe: unknown option %q; there are --check-config, --help and --version\n", arg)}))
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
			doc := r.run(picky()).expectError(cni.CodeConfig, HavePrefix(`name: "a b" is not a network name`))
			Expect(doc["details"]).To(And(
				HavePrefix(`ipam.type: "probe" is this plugin itself, which does not provide addresses; `+
					`prevResult.ips: `),
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
