package plugintest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/cni-conformance/conformance"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Call is one call of the plugin.
type Call struct {
	Command string
	ID      string // "one" when empty
	IfName  string // "eth0" when empty
	Netns   string
	Args    string
	Conf    any    // an Object or a text
	Path    string // CNI_PATH instead of the world's
	Ctx     context.Context
	Stdout  io.Writer // instead of a buffer
	Before  func()    // runs on the thread of the call
}

// Vars returns the environment of the call.
func (c Call) Vars(w *World) []string {
	return []string{"CNI_COMMAND=" + c.Command, "CNI_CONTAINERID=" + cmp.Or(c.ID, "one"),
		"CNI_IFNAME=" + cmp.Or(c.IfName, "eth0"),
		"CNI_NETNS=" + c.Netns, "CNI_ARGS=" + c.Args, "CNI_PATH=" + cmp.Or(c.Path, w.Dir), "PATH=" + os.Getenv("PATH")}
}

// Stdin returns the configuration as text.
func (c Call) Stdin() string {
	ginkgo.GinkgoHelper()
	if s, ok := c.Conf.(string); ok {
		return s
	}
	return Text(c.Conf)
}

// Program returns the call as a call of an executable.
func (c Call) Program(w *World, path string, args ...string) nstest.Program {
	ginkgo.GinkgoHelper()
	return nstest.Program{Path: path, Args: args, Env: c.Vars(w), Stdin: c.Stdin()}
}

// Answer is the outcome of a call.
type Answer struct {
	Code           int
	Stdout, Stderr string
}

// Ran returns the answer of a program.
func Ran(out nstest.Output) Answer { return Answer{out.Exit, out.Stdout, out.Stderr} }

// Call serves a call in this process, on a thread in the world's namespaces. With NSTEST_PROGRAMS, it runs the built
// plugin unless the call has a context or a writer, or uses IPAM plugins in this process ([World.InProcess]). Specs
// that replace a part of the plugin then fail.
func (w *World) Call(c Call) Answer {
	ginkgo.GinkgoHelper()
	if os.Getenv("NSTEST_PROGRAMS") != "" && w.inside == nil && c.Ctx == nil && c.Stdout == nil {
		return w.Exec(c)
	}
	var out, errs bytes.Buffer
	if w.inside != nil && c.Path == "" {
		c.Path = w.insideDir()
	}
	env := skel.Env{Vars: c.Vars(w), Stdin: strings.NewReader(c.Stdin()), Stdout: &out, Stderr: &errs,
		Programs: w.inside}
	if c.Stdout != nil {
		env.Stdout = c.Stdout
	}
	if c.Ctx == nil {
		c.Ctx = context.Background()
	}
	var code int
	w.Do(func() {
		if c.Before != nil {
			c.Before()
		}
		code = skel.Run(c.Ctx, w.Plugin, env)
	})
	return Answer{code, out.String(), errs.String()}
}

// Exec runs the built plugin as a runtime does.
func (w *World) Exec(c Call) Answer {
	ginkgo.GinkgoHelper()
	p := c.Program(w, nstest.Build(w.Plugin.Name))
	p.Before = c.Before
	return Ran(w.Run(p))
}

// ExecWithoutCookie is Exec on a kernel before 5.14, whose network namespaces have no cookie.
func (w *World) ExecWithoutCookie(c Call) Answer {
	ginkgo.GinkgoHelper()
	c.Before = func() {
		nstest.FailCall(unix.SYS_GETSOCKOPT, unix.ENOPROTOOPT, nstest.Arg{Number: 1, Value: unix.SOL_SOCKET},
			nstest.Arg{Number: 2, Value: unix.SO_NETNS_COOKIE})
	}
	return w.Exec(c)
}

// Reapply restores the missing objects of the attachment of a CHECK, as "hawser reapply" does, and returns the output.
func (w *World) Reapply(check Call) string {
	ginkgo.GinkgoHelper()
	var out bytes.Buffer
	env := skel.Env{Vars: check.Vars(w), Stdin: strings.NewReader(check.Stdin()), Stdout: &out, Stderr: &out,
		Reapply: true}
	w.Do(func() { skel.Run(context.Background(), w.Plugin, env) })
	return out.String()
}

// AwaitSubscription returns when a process on the host has subscribed to events of these groups of rtnetlink(7).
func (w *World) AwaitSubscription(groups string) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() string { return w.Cmd("cat", "/proc/thread-self/net/netlink") }).
		Should(gomega.MatchRegexp(`(?m)^\S+ 0 +\d+ +` + groups + ` `))
}

// Links are the events of links, for [World.AwaitSubscription].
const Links = "00000001"

// ReuseInode changes the records in a directory as if a namespace that no longer exists had the inode of another one.
func (w *World) ReuseInode(dir string, gone, now *nstest.Host) {
	ginkgo.GinkgoHelper()
	var inodes [2]unix.Stat_t
	for i, h := range []*nstest.Host{gone, now} {
		gomega.Expect(unix.Stat(h.Path, &inodes[i])).To(gomega.Succeed())
	}
	w.Cmd("sh", "-ec", fmt.Sprintf(`sed -i 's/"inode":%d\b/"inode":%d/' %s/*.json`, inodes[0].Ino, inodes[1].Ino, dir))
}

// Reference runs the reference plugin of the same name. It skips the spec if the reference is not installed.
func (w *World) Reference(r nstest.Reference, c Call) Answer {
	ginkgo.GinkgoHelper()
	return Ran(w.Run(c.Program(w, r.Program(w.Plugin.Name))))
}

// Succeeds checks that a call other than ADD succeeded without output.
func (w *World) Succeeds(c Call) {
	ginkgo.GinkgoHelper()
	a := w.Call(c)
	gomega.Expect(a.Stdout).To(gomega.BeEmpty())
	gomega.Expect(a.Code).To(gomega.BeZero())
}

// Warns checks that a call succeeded, and returns its standard error.
func (w *World) Warns(c Call) string {
	ginkgo.GinkgoHelper()
	a := w.Call(c)
	gomega.Expect(a.Code).To(gomega.BeZero(), a.Stdout)
	return a.Stderr
}

// Fails checks that a call printed one error object with a code, and returns its message and details, a line each.
func (w *World) Fails(c Call, code uint) string {
	ginkgo.GinkgoHelper()
	return w.Call(c).Failed(code)
}

// Failed is Fails for an answer.
func (a Answer) Failed(code uint) string {
	ginkgo.GinkgoHelper()
	got, message := a.Error()
	gomega.Expect(got).To(gomega.Equal(code), a.Stdout)
	return message
}

// Error returns the code of the only error object, and its message and details, one line each.
func (a Answer) Error() (code uint, message string) {
	ginkgo.GinkgoHelper()
	var e struct {
		CNIVersion, Msg, Details string
		Code                     uint
	}
	gomega.Expect(json.Unmarshal([]byte(a.Stdout), &e)).To(gomega.Succeed(), "one JSON document: %s", a.Stdout)
	gomega.Expect(e.Msg).NotTo(gomega.BeEmpty())
	gomega.Expect(e.CNIVersion).NotTo(gomega.BeEmpty())
	gomega.Expect(a.Code).To(gomega.Equal(1))
	return e.Code, e.Msg + "\n" + e.Details
}

// Problems returns the errors of a configuration, each with its code.
func Problems(err error) (list []string) {
	for _, p := range cni.ProblemsOf(err) {
		list = append(list, fmt.Sprintf("%d %s", p.Code, p))
	}
	return list
}

// Result is the result of ADD, converted to the newest version.
type Result struct {
	CNIVersion string
	Interfaces []struct {
		Name, MAC, Sandbox string
		MTU                int
	}
	IPs []struct {
		Address, Gateway string
		Interface        *int
	}
	Routes []Object
	DNS    Object
	Text   string `json:"-"`
}

// Add serves an ADD that must succeed.
func (w *World) Add(c Call) Result {
	ginkgo.GinkgoHelper()
	c.Command = "ADD"
	return w.Call(c).Added()
}

// Added returns the result of an ADD that must have succeeded.
func (a Answer) Added() Result {
	ginkgo.GinkgoHelper()
	gomega.Expect(a.Code).To(gomega.BeZero(), a.Stdout)
	r := Result{Text: a.Stdout}
	gomega.Expect(json.Unmarshal([]byte(a.Stdout), &r)).To(gomega.Succeed(), a.Stdout)
	return r
}

// With returns a configuration with a result as its prevResult.
func With(c Object, prev Result) Object {
	return Merge(c, Object{"prevResult": json.RawMessage(prev.Text)})
}

// Attached is a container with the call and the result of its ADD.
type Attached struct {
	*nstest.Host
	Call   Call
	Result Result
}

// Attach creates a container and attaches it; fake lends the addresses.
func (w *World) Attach(id string, c Object, addrs ...string) Attached {
	ginkgo.GinkgoHelper()
	if addrs != nil {
		w.LendAddrs(id, addrs...)
	}
	return w.AttachIn(nstest.NewNetns(), Call{ID: id, Conf: c})
}

// AttachIn attaches an existing container.
func (w *World) AttachIn(cont *nstest.Host, c Call) Attached {
	ginkgo.GinkgoHelper()
	c.Netns = cont.Path
	return Attached{cont, c, w.Add(c)}
}

// As returns the call of a later command, with the result as prevResult.
func (a Attached) As(command string) Call {
	ginkgo.GinkgoHelper()
	c := a.Call
	c.Command, c.Conf = command, With(c.Conf.(Object), a.Result)
	return c
}

// Ends checks that an attachment passes CHECK, and that its DEL leaves these links in the container.
func (w *World) Ends(a Attached, links ...string) {
	ginkgo.GinkgoHelper()
	w.Succeeds(a.As("CHECK"))
	w.Succeeds(a.As("DEL"))
	gomega.Expect(Names(a.Host, "")).To(gomega.ConsistOf(links))
}

// Verdict checks the conditions for every answer: the specification's, a known version, exit status 1 for an error, and
// no panic.
func (a Answer) Verdict(command string) error {
	if strings.Contains(a.Stdout+a.Stderr, "goroutine ") {
		return errors.New("a panic")
	}
	if err := conformance.CheckOutput(command, a.Code, a.Stdout); err != nil {
		return err
	}
	if a.Stdout == "" {
		return nil
	}
	var answer Object
	if err := json.Unmarshal([]byte(a.Stdout), &answer); err != nil {
		return err
	}
	version, _ := answer["cniVersion"].(string)
	switch {
	case a.Code > 1:
		return fmt.Errorf("exit status %d", a.Code)
	case command == "VERSION" && a.Code == 0:
		return nil // VERSION repeats the version of the request
	case !slices.Contains(cni.Versions(), version):
		return fmt.Errorf("cniVersion %q", version)
	case a.Code == 0:
		return conformance.CheckResult(version, answer)
	}
	return nil
}
