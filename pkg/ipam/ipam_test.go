package ipam_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// parentEnv makes the test binary a plugin that runs the delegate in the named directory.
const parentEnv = "IPAM_TEST_PARENT"

// executedEnv makes the test binary an IPAM plugin that reports that it was executed.
const executedEnv = "IPAM_TEST_EXECUTED"

func TestMain(m *testing.M) {
	if os.Getenv(executedEnv) != "" {
		fmt.Println(`{"code":11,"msg":"executed"}`)
		os.Exit(1)
	}
	if dir := os.Getenv(parentEnv); dir != "" {
		_, err := run(context.Background(), &ipam.Client{
			Req: &skel.Request{IPAM: "ipam", Path: dir, Env: os.Environ(), Stderr: os.Stderr}})
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	nstest.Main(m)
}

func TestIPAM(t *testing.T) { nstest.RunSpecs(t, "pkg/ipam") }

// install writes an executable plugin, a shell script.
func install(dir, name, script string) string {
	GinkgoHelper()
	file := filepath.Join(dir, name)
	Expect(os.WriteFile(file+".new", []byte("#!/bin/sh\n"+script+"\n"), 0o755)).To(Succeed())
	Expect(os.Rename(file+".new", file)).To(Succeed())
	return file
}

// client returns a client of the IPAM plugin "ipam", which is a shell script.
func client(script string) (*ipam.Client, *log) {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	install(dir, "ipam", script)
	stderr := &log{}
	return &ipam.Client{Req: &skel.Request{IPAM: "ipam", Conf: []byte(`{"name": "net1"}`), Version: "0.3.1",
		Path: dir, Env: []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=DEL"}, Stderr: stderr}}, stderr
}

// run starts the plugin for ADD and waits for its answer.
func run(ctx context.Context, c *ipam.Client) ([]byte, error) {
	d, err := c.Start(ctx, "ADD")
	if err != nil {
		return nil, err
	}
	return d.Wait(ctx)
}

// log is a standard error that can be read while it is written.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

var _ = Describe("Find", func() {
	var a, b string
	BeforeEach(func() { a, b = GinkgoT().TempDir(), GinkgoT().TempDir() })

	find := func(path, name string) (string, error) {
		c := ipam.Client{Req: &skel.Request{IPAM: name, Path: path}}
		err := c.FindPlugin()
		return c.File(), err
	}

	It("finds the first regular file", func() {
		install(b, "ipam", "")
		Expect(find(a+":"+b, "ipam")).To(Equal(filepath.Join(b, "ipam")))
		install(a, "ipam", "")
		Expect(find(a+":"+b, "ipam")).To(Equal(filepath.Join(a, "ipam")))
		Expect(find(b+":"+a, "ipam")).To(Equal(filepath.Join(b, "ipam")))
	})

	It("follows links and ignores other kinds of entries", func() {
		Expect(os.Mkdir(filepath.Join(a, "dir"), 0o755)).To(Succeed())
		Expect(syscall.Mkfifo(filepath.Join(a, "fifo"), 0o755)).To(Succeed())
		Expect(os.Symlink("nothing", filepath.Join(a, "dangling"))).To(Succeed())
		Expect(os.Symlink("loop", filepath.Join(a, "loop"))).To(Succeed())
		for _, name := range []string{"dir", "fifo", "dangling", "loop"} {
			_, err := find(a, name)
			Expect(cni.AsError(err).Code).To(Equal(cni.CodeEnvironment))
			install(b, name, "")
			Expect(find(a+":"+b, name)).To(Equal(filepath.Join(b, name)))
		}
		Expect(os.Symlink(filepath.Join(b, "dir"), filepath.Join(a, "link"))).To(Succeed())
		Expect(find(a, "link")).To(Equal(filepath.Join(a, "link")))
	})

	It("ignores empty entries, which do not mean the working directory", func() {
		GinkgoT().Chdir(a)
		install(a, "ipam", "")
		Expect(find("::", "ipam")).Error().To(HaveOccurred())
		Expect(find("::"+a+":", "ipam")).To(Equal(filepath.Join(a, "ipam")))
	})

	DescribeTable("names CNI_PATH if there is no such plugin", func(path string) {
		_, err := find(path, "ipam")
		Expect(err).To(MatchError(fmt.Sprintf("CNI_PATH: no plugin %[1]q in %[2]q: "+
			"failed to find plugin %[1]q in path %[3]s", "ipam", path, filepath.SplitList(path))))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeEnvironment))
	},
		Entry("empty", ""), Entry("empty entries", "::"), Entry("no directory", "/no/such"),
		Entry("a file as directory", "/etc/passwd"),
	)

	DescribeTable("refuses names that are not file names", Label("delegate-name"), func(name string) {
		_, err := find("/bin:/usr/bin", name)
		Expect(err).To(MatchError(ContainSubstring("type: %q", name)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
	},
		Entry("empty", ""), Entry("parent", ".."), Entry("itself", "."), Entry("a path", "/bin/sh"), Entry("upwards",
			"../bin/sh"),
		Entry("below", "x/y"), Entry("a backslash", `x\y`),
	)

	It("never finds a plugin of a relative directory in PATH", func() {
		GinkgoT().Chdir(a)
		install(a, "ipam", "echo here")
		install(b, "ipam", "echo PATH")
		GinkgoT().Setenv("PATH", b+":"+os.Getenv("PATH"))
		for _, path := range []string{".", "../" + filepath.Base(a)} {
			out := nstest.Must(run(context.Background(), &ipam.Client{
				Req: &skel.Request{IPAM: "ipam", Path: path, Env: os.Environ()}}))
			Expect(string(out)).To(Equal("here\n"))
		}
	})
})

// expectError checks code, message and details of a delegate's failure.
func expectError(err error, code uint, message, details any) {
	GinkgoHelper()
	var e *cni.Error
	Expect(errors.As(err, &e)).To(BeTrue(), "%v", err)
	Expect(e.Msg).To(ContainSubstring(fmt.Sprint(message)))
	Expect(e.Code).To(Equal(code), e.Msg)
	if text, ok := details.(string); ok {
		details = Equal(text)
	}
	Expect(e.Details).To(details.(OmegaMatcher))
}

var _ = Describe("a delegate", func() {
	ctx := context.Background()

	It("passes the environment, in which it replaces CNI_COMMAND", func() {
		c, _ := client("env")
		c.Req.Env = append(c.Req.Env, "CNI_ARGS=A=b;C=d", "CNI_COMMAND=again", "CNI_COMMANDX=kept", "X=a=b", "EMPTY=")
		out := nstest.Must(run(ctx, c))
		lines := strings.Split(string(out), "\n")
		Expect(lines).To(ContainElements("CNI_ARGS=A=b;C=d", "CNI_COMMANDX=kept", "X=a=b", "EMPTY="))
		Expect(strings.Count("\n"+string(out), "\nCNI_COMMAND=")).To(Equal(1))
		Expect(lines).To(ContainElement("CNI_COMMAND=ADD"))
	})

	It("passes the configuration byte for byte", func() {
		conf := append([]byte("\ufeff{\n\t\"x\" : 1e400, \"x\":\"\x00\xff\" }\r\n\n"),
			bytes.Repeat([]byte("x"), 1<<20)...)
		c, _ := client("cat")
		c.Req.Conf = conf
		out := nstest.Must(run(ctx, c))
		Expect(bytes.Equal(out, conf)).To(BeTrue())
	})

	It("passes its standard error on while it runs", Label("delegate-stderr"), func() {
		fifo := filepath.Join(GinkgoT().TempDir(), "fifo")
		Expect(unix.Mkfifo(fifo, 0o600)).To(Succeed())
		c, stderr := client("echo progress >&2; cat " + fifo)
		done := make(chan error, 1)
		go func() { _, err := run(ctx, c); done <- err }()
		Eventually(stderr.String).Should(Equal("progress\n"))
		Expect(done).NotTo(Receive())
		Expect(os.WriteFile(fifo, nil, 0o600)).To(Succeed())
		Eventually(done).Should(Receive(BeNil()))
	})

	DescribeTable("works if the standard error of the caller cannot be written", func(w io.Writer) {
		c, _ := client("echo one >&2; echo two >&2; echo {}")
		c.Req.Stderr = w
		Expect(run(ctx, c)).To(BeEquivalentTo("{}\n"))
	}, Entry("because writes fail", broken{}), Entry("because there is none", nil))

	DescribeTable("returns why a delegate failed", Label("delegate-died"), func(
		script string, code uint, message string, details any,
	) {
		c, _ := client(script)
		out, err := run(ctx, c)
		expectError(err, code, message, details)
		Expect(out).To(BeNil())
	},
		Entry("its own: try again",
			`echo '{"cniVersion": "0.4.0", "code": 11, "msg": "busy", "details": "by 17"}'; exit 1`, cni.CodeTryAgain,
			"busy", "by 17"),
		Entry("its own: one of ours", `echo '{"code": 100, "msg": "there"}'; exit 1`, cni.CodeExists, "there", ""),
		Entry("its own: configuration", `echo '{"code": 7, "msg": "bad"}'; exit 3`, cni.CodeConfig, "bad", ""),
		Entry("its own, without a code", `echo '{"code": 0, "msg": "bad"}'; exit 1`, cni.CodeInternal, "bad", ""),
		Entry("no output", "exit 1", cni.CodeInternal,
			`plugin "ipam": failed without an error object: exit status 1`, "it printed \"\""),
		Entry("text on standard error", "echo boom >&2; exit 2", cni.CodeInternal, "exit status 2", "boom"),
		Entry("text on standard output", "echo hello; exit 1", cni.CodeInternal, "exit status 1", `it printed "hello"`),
		Entry("much text on standard output: its beginning", "yes x | head -c 1000 | tr -d '\\n'; exit 1",
			cni.CodeInternal, "exit status 1", `it printed "`+strings.Repeat("x", 200)+`"`),
		Entry("a result, but a failure", `echo '{"ips": []}'; exit 1`, cni.CodeInternal, "exit status 1",
			`it printed "{\"ips\": []}"`),
		Entry("text on both", "echo hello; echo boom >&2; exit 1", cni.CodeInternal, "exit status 1", "boom"),
		Entry("a signal", "echo boom >&2; kill -9 $$", cni.CodeInternal, "signal: killed", "boom"),
		Entry("a crash", "kill -SEGV $$", cni.CodeInternal, "signal: segmentation fault", "it printed \"\""),
		Entry("much text on standard error: its end", "yes nonsense | head -c 90000 >&2; echo the end >&2; exit 1",
			cni.CodeInternal,
			"exit status 1",
			And(HaveSuffix("nonsense\nthe end"), WithTransform(func(s string) int { return len(s) }, BeNumerically("<=",
				4096)))),
		Entry("too much output", "head -c 17000000 /dev/zero; echo boom >&2", cni.CodeIO,
			"more than 16777216 bytes of output", ""),
		Entry("too much output, without end", "exec yes", cni.CodeInternal, "signal: broken pipe",
			`it printed "`+strings.Repeat(`y\n`, 100)+`"`),
	)

	It("returns code 11 for a file that is being written", func() {
		c, _ := client("echo done")
		file := filepath.Join(c.Req.Path, "ipam")
		writer := nstest.Must(os.OpenFile(file, os.O_WRONLY, 0))
		DeferCleanup(writer.Close)
		if err := exec.Command(file).Run(); !errors.Is(err, unix.ETXTBSY) {
			Skip("this kernel runs files that are being written")
		}
		_, err := run(ctx, c)
		expectError(err, cni.CodeTryAgain, `plugin "ipam": its file is being written`, "")
	})

	It("names a file that cannot be run", func() {
		c, _ := client("")
		Expect(os.Chmod(filepath.Join(c.Req.Path, "ipam"), 0o644)).To(Succeed())
		_, err := run(ctx, c)
		expectError(err, cni.CodeIO, `plugin "ipam": fork/exec `+c.Req.Path+"/ipam: permission denied", "")
		Expect(os.WriteFile(filepath.Join(c.Req.Path, "other"), []byte("not a program"), 0o755)).To(Succeed())
		_, err = run(ctx, &ipam.Client{Req: &skel.Request{IPAM: "other", Path: c.Req.Path}})
		expectError(err, cni.CodeIO, "exec format error", "")
	})

	DescribeTable("stops waiting at the deadline", Label("delegate-deadline"), func(script string) {
		given, stderr := client("echo waiting >&2; " + script)
		began := time.Now()
		_, err := run(nstest.DeadlineWhen(func() bool { return stderr.String() != "" }), given)
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
		expectError(err, cni.CodeTryAgain, `plugin "ipam": no answer within `, "waiting")
	},
		Entry("one that hangs", "exec sleep 60"),
		Entry("one whose child hangs", "sleep 60"),
		Entry("one that ignores signals", "trap '' TERM INT HUP; exec sleep 60"),
		Entry("one that does not read its input", "exec sleep 60 </dev/null"),
	)

	It("ends a delegate if the caller is told to end", func() {
		c, stderr := client("echo ready >&2; exec sleep 60")
		ctx, cancel := context.WithCancelCause(ctx)
		go func() {
			defer GinkgoRecover()
			Eventually(stderr.String).Should(Equal("ready\n"))
			cancel(errors.New("terminated"))
		}()
		_, err := run(ctx, c)
		expectError(err, cni.CodeTryAgain, `plugin "ipam": stopped: terminated`, "ready")
	})

	It("returns the answer of a delegate whose child has the output open", func() {
		c, stderr := client("sleep 60 & echo $! >&2; echo '{}'")
		began := time.Now()
		Expect(run(ctx, c)).To(BeEquivalentTo("{}\n"))
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
		pid := nstest.Must(strconv.Atoi(strings.TrimSpace(stderr.String())))
		Expect(unix.Kill(pid, unix.SIGKILL)).To(Succeed(), "the child is not ours to end")
	})

	It("is killed together with its caller", Label("delegate-deadline"), func() {
		dir := GinkgoT().TempDir()
		install(dir, "ipam", "echo $$ >&2; exec sleep 60")
		parent := exec.Command("/proc/self/exe")
		parent.Env = append(os.Environ(), parentEnv+"="+dir)
		stderr := nstest.Must(parent.StderrPipe())
		Expect(parent.Start()).To(Succeed())
		var pid int
		_, err := fmt.Fscanln(stderr, &pid)
		Expect(err).NotTo(HaveOccurred())
		child := nstest.Must(unix.PidfdOpen(pid, 0))
		DeferCleanup(unix.Close, child)
		Expect(parent.Process.Kill()).To(Succeed())
		_ = parent.Wait()
		fds := []unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(nstest.Patience(nstest.Hang).Milliseconds()))
		Expect([]any{n, err}).To(HaveExactElements(1, nil), "the delegate lives")
	})
})

// broken is a standard error that cannot be written.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, unix.EPIPE }

var _ = Describe("Client", func() {
	ctx := context.Background()
	var stderr *log
	fake := func(script string) *ipam.Client {
		GinkgoHelper()
		c, written := client(script)
		stderr = written
		return c
	}
	add := func(c *ipam.Client) (*cni.Result, error) {
		adding, err := c.Start(ctx, "ADD")
		if err != nil {
			return nil, err
		}
		return c.Result(ctx, adding)
	}
	run := func(command string) func(*ipam.Client, context.Context) error {
		return func(c *ipam.Client, ctx context.Context) error { return c.Run(ctx, command) }
	}
	print := func(doc string) string { return fmt.Sprintf("cat >/dev/null; cat <<'EOF'\n%s\nEOF", doc) }

	DescribeTable("reads the answer to ADD", func(doc string) {
		Expect(add(fake(print(doc)))).To(Equal(&cni.Result{
			IPs:    []cni.IP{{Address: netip.MustParsePrefix("10.0.0.5/24"), Gateway: netip.MustParseAddr("10.0.0.1")}},
			Routes: []cni.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0")}},
		}))
	},
		Entry("in the configuration's version",
			`{"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.0.0.5/24", "gateway": "10.0.0.1"}],
				"routes": [{"dst": "0.0.0.0/0"}]}`),
		Entry("without a version",
			`{"ips": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1"}], "routes": [{"dst": "0.0.0.0/0"}]}`),
		Entry("in another version",
			`{"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.5/24", "gateway": "10.0.0.1",
				"routes": [{"dst": "0.0.0.0/0"}]}}`),
		Entry("with interfaces, which an IPAM plugin must not return",
			`{"interfaces": [{"name": "eth9"}], "ips": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1",
				"interface": 7}], "routes": [{"dst": "0.0.0.0/0"}]}`),
	)

	DescribeTable("refuses an answer that it cannot use", Label("bad-answer"), func(doc, message string) {
		res, err := add(fake(print(doc)))
		Expect(res).To(BeNil())
		Expect(err).To(MatchError(And(HavePrefix(`IPAM plugin "ipam": `), ContainSubstring(message))))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeIPAM))
	},
		Entry("nothing", ``, "unexpected end of JSON input"), Entry("text", `hello`, "invalid JSON"), Entry("a cut",
			`{"ips": [`, "invalid JSON"),
		Entry("two documents", `{}{}`, "invalid JSON"), Entry("a list", `[]`, "is a JSON array"),
		Entry("null", `null`, "no addresses"), Entry("empty", `{}`, "no addresses"), Entry("no addresses",
			`{"ips": []}`, "no addresses"),
		Entry("an error object, but status 0", `{"code": 11, "msg": "busy"}`, "no addresses"),
		Entry("a bad version", `{"cniVersion": "9.9.9", "ips": [{"address": "10.0.0.5/24"}]}`, `cniVersion: "9.9.9"`),
		Entry("a bad address", `{"ips": [{"address": "10.0.0.5"}]}`, `ips[0].address: "10.0.0.5"`),
		Entry("a duplicate address", `{"ips": [{"address": "10.0.0.5/24"}, {"address": "10.0.0.5/16"}]}`,
			"address 10.0.0.5 twice"),
		Entry("a bad gateway", `{"ips": [{"address": "10.0.0.5/24", "gateway": "x"}]}`, `ips[0].gateway: "x"`),
		Entry("a bad route", `{"ips": [{"address": "10.0.0.5/24"}], "routes": [{"dst": "x"}]}`, `routes[0].dst: "x"`),
		Entry("a result in the format of another version", `{"cniVersion": "1.0.0", "ip4": {"ip": "10.0.0.5/24"}}`,
			"no addresses"),
	)

	type command = func(*ipam.Client, context.Context) error

	DescribeTable("returns the plugin's own error", Label("delegate-error"), func(call command, code uint) {
		err := call(fake(fmt.Sprintf(`echo '{"cniVersion": "0.3.1", "code": %d, "msg": "no",
			"details": "more"}'; exit 1`, code)), ctx)
		var e *cni.Error
		Expect(errors.As(err, &e)).To(BeTrue())
		Expect([]any{e.Code, e.Msg, e.Details}).To(HaveExactElements(code, "no", "more"))
	},
		Entry("ADD", func(c *ipam.Client, _ context.Context) error { _, err := add(c); return err }, cni.CodeTryAgain),
		Entry("DEL", run("DEL"), cni.CodeIO), Entry("CHECK", run("CHECK"), cni.CodeDrift),
		Entry("GC", run("GC"), cni.CodeIncompatibleVersion),
		Entry("STATUS", (*ipam.Client).Status, cni.CodeUnavailable),
	)

	DescribeTable("releases the addresses that the attachment has, and repeats ADD once", func(fails string, code uint,
		calls string) {
		c := fake(fmt.Sprintf(`cat >/dev/null; echo "$CNI_COMMAND" >&2; cd "${0%%/*}"
			fail() { echo '{"cniVersion": "0.3.1", "code": '"$1"', "msg": "no"}'; exit 1; }
			case $CNI_COMMAND in DEL) touch released; %s;; esac
			[ -e released ] || fail 100
			echo '{"ips": [{"address": "10.0.0.5/24"}]}'`, fails))
		res, err := add(c)
		Expect(stderr.String()).To(Equal(calls))
		if code != 0 {
			Expect(cni.AsError(err).Code).To(Equal(code))
			return
		}
		Expect(err).NotTo(HaveOccurred())
		Expect(res.IPs).To(HaveLen(1))
	},
		Entry("from before a reboot", "exit", uint(0), "ADD\nDEL\nADD\n"),
		Entry("which remain", "rm released; exit", cni.CodeExists, "ADD\nDEL\nADD\n"),
		Entry("which cannot be released", "fail 5", cni.CodeExists, "ADD\nDEL\n"),
	)

	DescribeTable("runs one command with the whole configuration, and ignores the output of commands other than ADD",
		func(call command, verb string) {
			c := fake(`echo "$CNI_COMMAND $(cat)" >&2; echo garbage`)
			Expect(call(c, ctx)).To(Succeed())
			Expect(stderr.String()).To(Equal(verb + ` {"name": "net1"}` + "\n"))
		},
		Entry("DEL", run("DEL"), "DEL"), Entry("CHECK", run("CHECK"), "CHECK"), Entry("GC", run("GC"), "GC"),
		Entry("STATUS", (*ipam.Client).Status, "STATUS"),
	)

	It("ends a plugin that still runs in a roll-back, and runs DEL within the roll-back's time", func() {
		c := fake(`echo "$CNI_COMMAND" >&2; touch "$0.$CNI_COMMAND"; exec sleep 60`)
		adding := nstest.Must(c.Start(ctx, "ADD"))
		began := time.Now()
		brief := nstest.DeadlineWhen(func() bool {
			_, err := os.Stat(c.Req.Path + "/ipam.DEL")
			return err == nil
		})
		Expect(cni.AsError(c.Release(brief, adding)).Code).To(Equal(cni.CodeTryAgain))
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
		Expect(stderr.String()).To(HaveSuffix("DEL\n"))
	})

	DescribeTable("refuses a type that is not a file name, and names the key", func(name string) {
		c := fake("")
		c.Req.IPAM = name
		_, err := add(c)
		Expect(err).To(MatchError(ContainSubstring("ipam.type: %q", name)))
		for _, err := range []error{err, c.Run(ctx, "DEL"), c.Status(ctx)} {
			Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		}
	}, Entry("none", ""), Entry("a path", "../ipam"), Entry("absolute", "/bin/true"), Entry("parent", ".."))

	It("names CNI_PATH if there is no such plugin", func() {
		c := fake("")
		c.Req.IPAM = "nobody"
		_, err := add(c)
		Expect(err).To(MatchError(ContainSubstring(`CNI_PATH: no plugin "nobody"`)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeEnvironment))
		Expect(c.String()).To(Equal(`IPAM plugin "nobody"`))
	})
})

var _ = DescribeTable("knows the plugins that only keep files, and dhcp, also under another name", Label("other-name"),
	func(name string, needs, clears bool) {
		c := ipam.Client{Req: &skel.Request{IPAM: name}}
		Expect(c.NeedsInterface()).To(Equal(needs))
		Expect(c.ClearsInterface()).To(Equal(clears))
	},
	Entry(nil, "host-local", false, false), Entry(nil, "buildkit-cni-host-local", false, false),
	Entry(nil, "static", false, false), Entry(nil, "x-cluster-local", false, false),
	Entry(nil, "dhcp", true, true), Entry(nil, "x-dhcp", true, true),
	Entry(nil, "local", true, false), Entry(nil, "xstatic", true, false),
)
