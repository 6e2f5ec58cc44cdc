package skel_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

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
				Expect(a.stderr).To(ContainSubstring("does not begin as a log does; choose another name"))
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
		Entry("an absolute path", `"/etc/ld.so.preload"`, `"/etc/ld.so.preload" is no plain file name`),
		Entry("the path of the right file", `"/var/log/hawser/x"`, `"/var/log/hawser/x" is no plain file name`),
		Entry("a relative path", `"../x"`, `"../x" is no plain file name`),
		Entry("a directory", `".."`, `".." is no plain file name`),
		Entry("white space", `"a b"`, `"a b" is no plain file name`), Entry("a number", `5`, "is no JSON string"),
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
