package skel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing/iotest"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

var _ = Describe("a call that succeeds", func() {
	It("prints the result of ADD in exactly the version of the configuration", func() {
		for _, v := range cni.Versions() {
			r := attach("ADD")
			r.conf = fmt.Sprintf(`{"cniVersion": %q, "name": "net1"}`, v)
			a := r.run(probe(func(*skel.Request) error { return nil }))
			want := nstest.Must(oneAddress().Encode(v))
			Expect(a).To(Equal(answer{stdout: string(want)}))
		}
		r := attach("ADD")
		r.conf = `{"name": "net1"}`
		doc := r.run(probe(func(*skel.Request) error { return nil })).document()
		Expect(doc).To(HaveKeyWithValue("cniVersion", "0.1.0"))
	})

	DescribeTable("prints nothing", Label("one-document"), func(command, conf string) {
		r := attach(command)
		r.conf = conf
		called := 0
		r.run(probe(func(*skel.Request) error { called++; return nil })).expectSilence()
		Expect(called).To(Equal(1))
		r.run(skel.Plugin[any]{Name: "bare", Add: nil, Del: nil}).expectSilence()
	},
		Entry("DEL", "DEL", conf1), Entry("DEL, of the oldest version", "DEL", `{"name": "net1"}`), Entry("CHECK",
			"CHECK", conf1),
		Entry("CHECK, of its first version", "CHECK", `{"name": "net1", "cniVersion": "0.4.0"}`), Entry("STATUS",
			"STATUS", conf1),
		Entry("GC", "GC", `{"cniVersion": "1.1.0", "name": "net1", "cni.dev/valid-attachments": null}`),
	)

	DescribeTable("of DEL and GC goes on without an IPAM plugin that is the plugin itself", func(command, more string) {
		r := attach(command)
		r.conf = `{"cniVersion": "1.1.0", "name": "net1", "type": "other",
			"cni.dev/valid-attachments": [], ` + more + `}`
		called := 0
		a := r.run(probe(func(q *skel.Request) error { called++; Expect(q.IPAM).To(BeEmpty()); return nil }))
		Expect(a.stderr).To(And(HavePrefix("probe: ipam.type: "), HaveSuffix("; ignored\n")))
		Expect(answer{code: a.code, stdout: a.stdout}).To(Equal(answer{}))
		Expect(called).To(Equal(1))
	},
		Entry("DEL", "DEL", `"ipam": {"type": "probe"}`), Entry("GC", "GC", `"ipam": {"type": "probe"}`),
		Entry("DEL, under another name", "DEL", `"ipam": {"type": "other"}`),
	)

	DescribeTable("of ADD, CHECK and STATUS never has itself as IPAM plugin", func(command string) {
		for _, ipam := range []string{"probe", "other", "x-probe"} {
			r := attach(command)
			r.conf = fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net1", "type": "other", "ipam": {"type": %q}}`, ipam)
			r.run(forbidden()).expectError(cni.CodeConfig,
				fmt.Sprintf("ipam.type: %q is this plugin itself, which does not provide addresses", ipam))
			it := forbidden()
			it.IPAM = true // for its own type is what it finds there
			Expect(r.run(it).stdout).To(ContainSubstring(errHandler.Error()))
		}
	}, Entry("ADD", "ADD"), Entry("CHECK", "CHECK"), Entry("STATUS", "STATUS"))

	DescribeTable("of a chained plugin, but DEL, needs the result of the plugin before it", func(command string) {
		it := forbidden()
		it.Chained = true
		r := attach(command)
		r.conf = conf1
		r.run(it).expectError(cni.CodeConfig,
			"prevResult: missing prevResult from earlier plugin. This plugin must be called as chained plugin: "+
				"probe works on the interface of another plugin")
		r.conf = `{"cniVersion": "1.1.0", "name": "net1", "prevResult": {"cniVersion": "1.1.0"}}`
		Expect(r.run(it).stdout).To(ContainSubstring(errHandler.Error()))
		r = attach("DEL")
		r.conf = conf1
		Expect(r.run(it).stdout).To(ContainSubstring(errHandler.Error()))
	}, Entry("ADD", "ADD"), Entry("CHECK", "CHECK"))

	It("gives the handler what the runtime gave", func() {
		r := attach("ADD")
		r.more = []string{"CNI_ARGS=IP=10.0.0.9"}
		r.conf = `{"cniVersion": "1.0.0", "name": "net1", "IPAM": {"type": "host-local"}, "x": 5,
			"prevResult": {"ips": [{"address": "10.0.0.5/24"}]}}`
		r.run(probe(func(q *skel.Request) error {
			Expect(q.Attachment).To(Equal(cni.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}))
			Expect([]string{q.Netns, q.Args, q.Path, q.Version, q.IPAM}).To(HaveExactElements(r.netns, "IP=10.0.0.9",
				"/opt/cni/bin", "1.0.0", "host-local"))
			Expect(string(q.Conf)).To(Equal(r.conf))
			Expect(q.PrevResult).To(Equal(oneAddress()))
			Expect(q.NS.Path()).To(Equal(r.netns))
			Expect(q.Env).To(ContainElements("PATH=/bin", "CNI_COMMAND=ADD"))
			var own struct{ X int }
			Expect(q.Decode(&own)).To(Succeed())
			Expect(own.X).To(Equal(5))
			return nil
		})).document()
	})

	It("of GC without a list, as cnitool calls it, removes nothing, asks nobody and says so", Label("gc-list"), func() {
		for _, key := range []string{"", `"cni.dev/attachment": [], `} {
			r := request{command: "GC",
				conf: `{"cniVersion": "1.1.0", ` + key + `"name": "net1", "ipam": {"type": "host-local"}}`}
			Expect(r.run(forbidden())).To(Equal(answer{
				stderr: "probe: cni.dev/valid-attachments: missing; nothing is removed\n"}))
		}
		for _, list := range []string{"null", "[]"} {
			r := request{command: "GC",
				conf: `{"cniVersion": "1.1.0", "name": "net1", "cni.dev/valid-attachments": ` + list + `}`}
			r.run(forbidden()).expectError(cni.CodeInternal, errHandler.Error())
		}
	})

	It("gives GC its network and the valid attachments, and nothing of an attachment", func() {
		r := request{command: "GC", id: "../c1", ifname: "../eth0", netns: "/x",
			conf: `{"cniVersion": "1.1.0", "name": "net1",
				"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}`}
		r.run(probe(func(q *skel.Request) error {
			Expect(q.Attachment).To(Equal(cni.Attachment{Network: "net1"}))
			Expect(q.Netns).To(BeEmpty())
			Expect(q.NS).To(BeNil())
			Expect(q.Valid.Has(cni.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"})).To(BeTrue())
			return nil
		})).expectSilence()
	})

	DescribeTable("parses the configuration once for the handlers that are given it, and not for others",
		func(command string, times int) {
			r := attach(command)
			r.conf = `{"cniVersion": "1.1.0", "name": "net1", "cni.dev/valid-attachments": [], "vlan": 7}`
			parsed, given := 0, func(_ context.Context, _ *skel.Request, vlan any) error {
				Expect(vlan).To(Equal(7))
				return nil
			}
			p := skel.Plugin[any]{
				Config: skel.Config[any]{Parse: func(q *skel.Request) (any, error) {
					parsed++
					var w wireConfig
					err := q.Decode(&w)
					return w.VLAN, err
				}},
				Add: func(ctx context.Context, q *skel.Request, vlan any) (*cni.Result, error) {
					return oneAddress(), given(ctx, q, vlan)
				},
				Check: given, Status: given,
			}
			Expect(r.run(p).code).To(BeZero())
			Expect(parsed).To(Equal(times))
		}, Entry(nil, "ADD", 1), Entry(nil, "CHECK", 1), Entry(nil, "STATUS", 1),
		Entry(nil, "DEL", 0), Entry(nil, "GC", 0))
})

var _ = Describe("a call that is refused before the handler runs", func() {
	DescribeTable("for its environment: code 4, naming all the variables", Label("code-4"), func(
		r request, message string,
	) {
		r.conf = `{"cniVersion": "0.4.0", "name": "../no"}`
		doc := r.run(forbidden()).expectError(cni.CodeEnvironment, message)
		Expect(doc).To(HaveKeyWithValue("cniVersion", "0.4.0"),
			"the configuration's, although it was not looked at yet")
	},
		Entry("no command", request{id: "c1"}, "environment variables missing: CNI_COMMAND"),
		Entry("an unknown command", request{command: "FOO"},
			`environment variables invalid: CNI_COMMAND "FOO" (want ADD, DEL, CHECK, GC, STATUS or VERSION)`),
		Entry("a command in lower case", request{command: "add"},
			`environment variables invalid: CNI_COMMAND "add" (want ADD, DEL, CHECK, GC, STATUS or VERSION)`),
		Entry("ADD, nothing", request{command: "ADD"},
			"environment variables missing: CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME"),
		Entry("CHECK, nothing", request{command: "CHECK"},
			"environment variables missing: CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME"),
		Entry("DEL, nothing", request{command: "DEL"}, "environment variables missing: CNI_CONTAINERID, CNI_IFNAME"),
		Entry("both kinds", request{command: "ADD", id: "../c", ifname: "a/b"},
			`environment variables missing: CNI_NETNS; invalid: CNI_CONTAINERID "../c", CNI_IFNAME "a/b"`),
		Entry("an interface too long", request{command: "DEL", id: "c", ifname: "sixteen-letters-"},
			`environment variables invalid: CNI_IFNAME "sixteen-letters-"`),
		Entry("an interface that is a pattern", request{command: "ADD", id: "c", netns: "/x", ifname: "eth%d"},
			`environment variables invalid: CNI_IFNAME "eth%d"`),
		Entry("ADD, a control character", request{command: "ADD", id: "c", netns: "/n", ifname: "et\x1bh"},
			`environment variables invalid: CNI_IFNAME "et\x1bh"`),
	)

	DescribeTable("for its configuration", Label("codes"), func(command, conf string, code uint, message string) {
		r := request{command: command, id: "c1", netns: "/no/such", ifname: "eth0", conf: conf}
		r.run(forbidden()).expectError(code, ContainSubstring(message))
	},
		Entry("empty", "ADD", "", cni.CodeDecode, "standard input is empty"),
		Entry("blank", "DEL", " \n", cni.CodeDecode, "standard input is empty"),
		Entry("text", "DEL", "hello", cni.CodeDecode, "network configuration: invalid JSON"),
		Entry("cut", "STATUS", `{"name": "x"`, cni.CodeDecode, "unexpected end of JSON input"),
		Entry("deep", "ADD", strings.Repeat(`{"a":`, 100000), cni.CodeDecode, "exceeded max depth"),
		Entry("two documents", "ADD", conf1+conf1, cni.CodeDecode, "after top-level value"),
		Entry("a list", "ADD", "[]", cni.CodeConfig, "is a JSON array, want an object"),
		Entry("a name of another type", "ADD", `{"name": 5}`, cni.CodeConfig, "name: is a JSON number"),
		Entry("an unknown version", "ADD", `{"cniVersion": "9.9.9", "name": "../x"}`, cni.CodeIncompatibleVersion,
			`cniVersion: "9.9.9" is not supported: incompatible CNI versions`),
		Entry("a version spelt otherwise", "DEL", `{"cniVersion": "1.0", "name": "x"}`, cni.CodeIncompatibleVersion,
			`cniVersion: "1.0" is not supported: incompatible CNI versions`),
		Entry("CHECK before it was", "CHECK", `{"cniVersion": "0.3.1", "name": "../x"}`, cni.CodeIncompatibleVersion,
			`cniVersion: "0.3.1": config version does not allow CHECK`),
		Entry("GC before it was", "GC", `{"cniVersion": "1.0.0", "name": "x"}`, cni.CodeIncompatibleVersion,
			`cniVersion: "1.0.0": config version does not allow GC`),
		Entry("STATUS before it was", "STATUS", `{"cniVersion": "1.0.0", "name": "x"}`, cni.CodeIncompatibleVersion,
			`cniVersion: "1.0.0": config version does not allow STATUS`),
		Entry("no name", "ADD", `{}`, cni.CodeConfig, `name: "" is not a network name`),
		Entry("null", "ADD", `null`, cni.CodeConfig, `name: "" is not a network name`),
		Entry("a path as name", "DEL", `{"name": "../x"}`, cni.CodeConfig, `name: "../x" is not a network name`),
		Entry("a bad prevResult", "ADD", `{"name": "x", "cniVersion": "1.0.0", "prevResult": {"ips": 5}}`,
			cni.CodeConfig, "prevResult.ips: is a JSON number"),
		Entry("a bad prevResult", "CHECK", `{"name": "x", "cniVersion": "1.0.0", "prevResult": []}`, cni.CodeConfig,
			"prevResult: "),
	)

	DescribeTable("the error names the configuration's version", func(conf, version string) {
		r := request{command: "ADD", id: "c1", netns: "/no/such", ifname: "eth0", conf: conf}
		Expect(r.run(forbidden()).document()).To(HaveKeyWithValue("cniVersion", version))
	},
		Entry("the configuration's", `{"cniVersion": "0.4.0", "name": "x"}`, "0.4.0"),
		Entry("beside a value of the wrong type", `{"cniVersion": "0.4.0", "name": 5}`, "0.4.0"),
		Entry("the oldest where there is none", `{"name": "x"}`, "0.1.0"),
		Entry("the newest where it is none that we speak", `{"cniVersion": "9.9.9", "name": "x"}`, "1.1.0"),
		Entry("the newest where it cannot be read", `hello`, "1.1.0"),
	)

	It("when standard input cannot be read: code 5", func() {
		for _, command := range []string{"ADD", "DEL", "STATUS"} {
			r := request{command: command, id: "c1", netns: "/x", ifname: "eth0",
				stdin: iotest.ErrReader(errors.New("oops"))}
			r.run(forbidden()).expectError(cni.CodeIO, "network configuration: read standard input: oops")
		}
	})

	It("when the configuration never ends", Label("sizes"), func() {
		for command, most := range map[string]int{"ADD": 4 << 20, "CHECK": 4 << 20, "STATUS": 4 << 20, "DEL": 64 << 20,
			"GC": 64 << 20} {
			r := attach(command)
			r.stdin = iotest.DataErrReader(endless{})
			r.run(forbidden()).expectError(cni.CodeConfig,
				fmt.Sprintf("network configuration: longer than %d bytes", most))
		}
	})

	It("when a name is longer than a file system takes, but in DEL", Label("sizes"), func() {
		for _, command := range []string{"ADD", "CHECK", "STATUS", "DEL", "GC"} {
			r := attach(command)
			r.conf = strings.Replace(conf1, "net1", strings.Repeat("n", 1<<20), 1)
			r.conf = strings.Replace(r.conf, "}", `, "cni.dev/valid-attachments": []}`, 1)
			if command == "DEL" || command == "GC" {
				Expect(r.run(forbidden()).stdout).To(ContainSubstring(errHandler.Error()), command)
				continue
			}
			r.run(forbidden()).expectError(cni.CodeConfig,
				`name: "`+strings.Repeat("n", 64)+`..." has 1048576 bytes, more than 255`)
			r = attach(command)
			if r.id = strings.Repeat("c", 256); command != "STATUS" {
				r.run(forbidden()).expectError(cni.CodeEnvironment,
					`environment variables invalid: CNI_CONTAINERID "`+r.id+`"`)
			}
		}
	})

	It("after the time of a call, when standard input does not end", Label("sizes"), func() {
		in, out, err := os.Pipe()
		Expect(err).NotTo(HaveOccurred())
		defer out.Close()
		defer in.Close()
		var stdout bytes.Buffer
		r := attach("ADD")
		code := skel.Run(context.Background(), forbidden(), skel.Env{Vars: r.vars(), Stdin: in, Stdout: &stdout,
			Stderr: io.Discard, Limit: 50 * time.Millisecond})
		answer{code, stdout.String(), ""}.expectError(cni.CodeTryAgain,
			HavePrefix("network configuration: standard input does not end: "))
	})

	It("are not all said of unknown keys, of which a configuration may have any number", Label("sizes"), func() {
		r := attach("ADD")
		var keys strings.Builder
		for i := range 300_000 {
			fmt.Fprintf(&keys, `"kay%d":1,`, i)
		}
		r.conf = strings.Replace(conf1, "{", "{"+keys.String(), 1)
		p := probe(func(*skel.Request) error { return nil })
		p.Keys = struct {
			Key int `json:"keys"`
		}{}
		Expect(strings.Count(r.run(p).stderr, "is unknown")).To(BeNumerically("<=", 64))
		p.Keys = struct {
			List []struct {
				Key int `json:"keys"`
			} `json:"list"`
		}{}
		r.conf = strings.Replace(conf1, "{", `{"list": [`+strings.Repeat(`{"kays": 1}, `, 4000)+`{}],`, 1)
		Expect(strings.Count(r.run(p).stderr, "is unknown")).To(Equal(64))
	})
})

// endless is input without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// panicking cannot be written to.
type panicking struct{}

func (panicking) Write([]byte) (int, error) { panic("no writing") }

var _ = Describe("a handler's error", func() {
	DescribeTable("is one error object", Label("one-document"), func(err error, code uint, message string) {
		for _, command := range []string{"ADD", "DEL", "CHECK", "STATUS"} {
			attach(command).run(probe(func(*skel.Request) error { return err })).expectError(code, message)
		}
	},
		Entry("with its code", cni.Errorf(cni.CodeConflict, "x"), cni.CodeConflict, "x"),
		Entry("wrapped", fmt.Errorf("link: %w", cni.Errorf(cni.CodeTryAgain, "busy")), cni.CodeTryAgain, "link: busy"),
		Entry("of a file", fmt.Errorf("state: %w", &fs.PathError{Op: "open", Path: "/x", Err: fs.ErrPermission}),
			cni.CodeIO, "state: open /x: permission denied"),
		Entry("any other", errHandler, cni.CodeInternal, "the handler was called"),
		Entry("without a code", &cni.Error{Msg: "x"}, cni.CodeInternal, "x"),
	)

	It("that is a lock held for too long is code 11, whatever was wrapped around it", Label("nft-lock"), func() {
		busy := fmt.Errorf("lock /run/x.lock: %w process 4711 (other)", statefile.ErrBusy)
		for _, command := range []string{"ADD", "DEL", "CHECK", "STATUS"} {
			attach(command).run(probe(func(r *skel.Request) error {
				r.OnFail("nothing", func(context.Context) error { return errors.New("no") })
				return errors.Join(errors.New("before"), fmt.Errorf("rules: %w", busy))
			})).expectError(cni.CodeTryAgain, "before\nrules: lock /run/x.lock: held by process 4711 (other)")
		}
		attach("ADD").run(probe(func(*skel.Request) error { return cni.Errorf(cni.CodeUnavailable, "%w", busy) })).
			expectError(cni.CodeUnavailable, ContainSubstring("4711"))
	})

	It("that is a panic is code 999 wherever it comes from", Label("panic"), func() {
		for _, command := range []string{"ADD", "DEL", "CHECK", "STATUS"} {
			p := probe(func(*skel.Request) error { panic("oops") })
			doc := attach(command).run(p).expectError(cni.CodeInternal, "internal error: oops")
			Expect(doc).To(HaveKeyWithValue("details", ContainSubstring("contract_test.go")))
		}
		plugin := probe(func(*skel.Request) error { return nil })
		plugin.Keys = wireConfig{}
		var out bytes.Buffer
		code := skel.Run(context.Background(), plugin, skel.Env{
			Vars: attach("ADD").vars(), Stdout: &out, Stderr: panicking{},
			Stdin: strings.NewReader(`{"cniVersion": "1.0.0", "name": "net1", "BRIDGE": ""}`),
		})
		answer{code: code, stdout: out.String()}.expectError(cni.CodeInternal, "internal error: no writing")
	})
})

// own is the namespace of a thread that runs us; /proc/self is that of the
// thread that the process began with, which need not be the same.
const own = "/proc/thread-self/ns/net"

// ownForms are ways to name the plugin's own namespace.
func ownForms() []string {
	GinkgoHelper()
	nstest.NewNetns() // skips where we may not mount either
	link := filepath.Join(GinkgoT().TempDir(), "link")
	Expect(os.Symlink(own, link)).To(Succeed())
	pin := filepath.Join(GinkgoT().TempDir(), "pin")
	Expect(os.WriteFile(pin, nil, 0o644)).To(Succeed())
	Expect(unix.Mount(own, pin, "", unix.MS_BIND, "")).To(Succeed())
	DeferCleanup(unix.Unmount, pin, unix.MNT_DETACH)
	return []string{own, link, pin}
}

// noNetns are paths where something is, but no network namespace.
func noNetns() []string {
	file := filepath.Join(GinkgoT().TempDir(), "file")
	Expect(os.WriteFile(file, nil, 0o644)).To(Succeed())
	return []string{file, "/proc/self/ns/mnt", "/dev/null", "/proc/self/status", "/tmp"}
}

// gone are paths where nothing is.
func gone() []string {
	dir := GinkgoT().TempDir()
	dangling := filepath.Join(dir, "dangling")
	Expect(os.Symlink(filepath.Join(dir, "nothing"), dangling)).To(Succeed())
	ended := nstest.NewNetns()
	ended.Unpin()
	return []string{filepath.Join(dir, "nothing"), dangling, ended.Path, "/proc/0/ns/net"}
}

const confPrev = `{"cniVersion": "1.1.0", "name": "net1", "prevResult": {}}`

var _ = Describe("CNI_NETNS", func() {
	attachTo := func(command, path, conf string) request {
		return request{command: command, id: "c1", netns: path, ifname: "eth0", conf: conf}
	}

	It("that is our own is refused before the handler runs", Label("own-namespace"), func() {
		for _, path := range ownForms() {
			for _, command := range []string{"ADD", "CHECK"} {
				attachTo(command, path, conf1).run(forbidden()).expectError(cni.CodeEnvironment,
					ContainSubstring("CNI_NETNS: network namespace %q: is the plugin's own", path))
			}
		}
	})

	DescribeTable("that is our own is taken when asked to", func(value string, taken bool) {
		nstest.NewNetns()
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			r := attachTo(command, own, conf1)
			r.more = []string{"CNI_NETNS_OVERRIDE=" + value}
			a := r.run(probe(func(q *skel.Request) error {
				Expect(q.NS != nil).To(Equal(taken))
				return nil
			}))
			Expect(a.code == 0).To(Equal(taken || command == "DEL"), a.stdout)
		}
	},
		Entry("1", "1", true), Entry("true", "true", true), Entry("TRUE", "TRUE", true),
		Entry("empty", "", false), Entry("0", "0", false), Entry("false", "false", false), Entry("yes", "yes", false),
	)

	It("that is gone is code 3 on a first ADD only: elsewhere there is something to clean up", Label("code-3"), func() {
		for _, path := range gone() {
			names := ContainSubstring("CNI_NETNS: network namespace %q", path)
			attachTo("ADD", path, conf1).run(forbidden()).expectError(cni.CodeUnknownContainer, names)
			attachTo("ADD", path, confPrev).run(forbidden()).expectError(cni.CodeEnvironment, names)
			attachTo("CHECK", path, conf1).run(forbidden()).expectError(cni.CodeEnvironment, names)
			attachTo("CHECK", path, confPrev).run(forbidden()).expectError(cni.CodeEnvironment, names)
		}
	})

	It("that is no namespace is code 4", func() {
		nstest.NewNetns()
		for _, path := range noNetns() {
			for _, command := range []string{"ADD", "CHECK"} {
				attachTo(command, path, conf1).run(forbidden()).expectError(cni.CodeEnvironment,
					And(ContainSubstring("CNI_NETNS: network namespace %q", path),
						ContainSubstring("not a network namespace")))
			}
		}
	})

	It("is no reason for DEL to fail: without a container there is nothing to do in it", func() {
		unused := func(q *skel.Request) error { Expect(q.NS).To(BeNil()); return nil }
		for _, path := range append(gone(), "") {
			attachTo("DEL", path, conf1).run(probe(unused)).expectSilence()
		}
		for _, path := range append(noNetns(), ownForms()...) {
			a := attachTo("DEL", path, conf1).run(probe(unused))
			Expect(a.stderr).To(And(ContainSubstring("CNI_NETNS: network namespace %q", path),
				ContainSubstring("treated as a namespace that no longer exists")))
			Expect(answer{code: a.code, stdout: a.stdout}).To(Equal(answer{}))
		}
	})

	It("is not opened for IPAM plugins, GC and STATUS, whatever is at its path", Label("ipam-namespace"), func() {
		blind := probe(func(q *skel.Request) error { Expect(q.NS).To(BeNil()); return nil })
		ipam := blind
		ipam.IPAM = true
		for _, path := range append(append(gone(), noNetns()...), own) {
			Expect(attachTo("ADD", path, conf1).run(ipam).document()).To(HaveKey("ips"))
			attachTo("CHECK", path, conf1).run(ipam).expectSilence()
			attachTo("DEL", path, conf1).run(ipam).expectSilence()
			attachTo("STATUS", path, conf1).run(blind).expectSilence()
			attachTo("GC", path,
				`{"cniVersion": "1.1.0", "name": "x", "cni.dev/valid-attachments": []}`).run(blind).expectSilence()
		}
	})

	It("is closed when the call is over, and leaves no descriptor when it is refused", func() {
		open := func() int {
			list := nstest.Must(os.ReadDir("/proc/self/fd"))
			return len(list)
		}
		r := attach("ADD")
		r.run(probe(func(*skel.Request) error { return nil }))
		before := open()
		for range 20 {
			r.run(probe(func(*skel.Request) error { return errHandler }))
			attachTo("ADD", own, conf1).run(forbidden())
		}
		Expect(open()).To(BeNumerically("<", before+20))
	})
})

var _ = Describe("DEL", func() {
	It("takes a prevResult that cannot be read for none, and says so", func() {
		r := attach("DEL")
		r.conf = `{"cniVersion": "1.0.0", "name": "net1", "prevResult": {"cniVersion": "9.9.9"}}`
		a := r.run(probe(func(q *skel.Request) error { Expect(q.PrevResult).To(BeNil()); return nil }))
		Expect(a.code).To(BeZero())
		Expect(a.stdout).To(BeEmpty())
		Expect(a.stderr).To(ContainSubstring(`prevResult.cniVersion: "9.9.9"`))
	})
})
