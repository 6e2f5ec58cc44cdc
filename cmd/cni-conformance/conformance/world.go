package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// world is the host of a case, in the process's namespaces.
type world struct {
	job
	path []string // CNI_PATH

	mu  sync.Mutex
	log []string
	n   int // containers so far
}

// verdict ends a case by a panic, from any depth.
type verdict struct {
	status status
	detail string
}

func (w *world) fail(format string, args ...any) {
	panic(verdict{failed, fmt.Sprintf(format, args...)})
}

func (w *world) skip(format string, args ...any) {
	panic(verdict{skipped, fmt.Sprintf(format, args...)})
}

// expect fails the case unless ok.
func (w *world) expect(ok bool, format string, args ...any) {
	if !ok {
		w.fail(format, args...)
	}
}

func (w *world) noError(err error) {
	if err != nil {
		w.fail("%v", err)
	}
}

// serve runs the case and returns its outcome.
func (w *world) serve() (o outcome) {
	defer func() {
		if v, ok := recover().(verdict); ok {
			o.Status, o.Detail = v.status, v.detail
		}
		if o.Status == failed {
			o.Calls = w.log[max(0, len(w.log)-3):]
		}
	}()
	o.Status = passed
	if w.Case == "" {
		o.Info = w.probe()
		return o
	}
	for _, c := range cases {
		if c.Name == w.Case {
			c.run(w)
			return o
		}
	}
	return outcome{Status: broken, Detail: "no case " + w.Case}
}

// attachment is a container with the calls of its life.
type attachment struct {
	id, ifName, netns string
	made              string // host end of the interface that the suite created

	plugin object // configuration of the subject; each call derives its own from it
	prev   object // the result of the preceding plugin
	result object // of ADD
}

// netns creates a network namespace as a runtime does.
func (w *world) netns(name string) string {
	w.ip("", "netns add "+name)
	return filepath.Join(netnsDir, name)
}

// container creates a container for the subject. For a chained plugin it has an interface already.
func (w *world) container(id string) *attachment {
	w.n++
	a := &attachment{id: id, ifName: w.Subject.Options.IfName, plugin: w.Subject.Plugins[0]}
	a.netns = w.netns(id)
	if w.Info.Kind&Chained == 0 {
		return a
	}
	if len(w.Subject.Before) == 0 {
		a.made = fmt.Sprintf("made%d", w.n)
		a.prev = w.makeInterface(a, w.n)
	}
	for _, conf := range w.Subject.Before {
		b := *a
		b.plugin = conf
		a.prev = w.added(&b)
	}
	return a
}

// makeInterface creates a veth pair with addresses, and returns the result of the plugin that could have done it.
func (w *world) makeInterface(a *attachment, n int) object {
	end := a.made
	hostMAC, mac := fmt.Sprintf("02:ca:fe:01:00:%02x", n), fmt.Sprintf("02:ca:fe:02:00:%02x", n)
	four, six := fmt.Sprintf("10.213.0.%d/24", n+1), fmt.Sprintf("fd13:213::%x/64", n+1)
	w.ip("", fmt.Sprintf("link add %s address %s type veth peer name %s address %s netns %s", end, hostMAC, a.ifName,
		mac, a.id), "link set "+end+" up")
	w.ip(a.id, "link set lo up", "link set "+a.ifName+" up", "addr add "+four+" dev "+a.ifName,
		"addr add "+six+" nodad dev "+a.ifName, "route add default via 10.213.0.1",
		"route add default via fd13:213::1 dev "+a.ifName)
	ip4 := object{"address": four, "gateway": "10.213.0.1", "interface": 1.0}
	ip6 := object{"address": six, "gateway": "fd13:213::1", "interface": 1.0}
	if w.Spec < "1.0.0" {
		ip4["version"], ip6["version"] = "4", "6"
	}
	return object{"cniVersion": w.Spec, "interfaces": []any{object{"name": end, "mac": hostMAC},
		object{"name": a.ifName, "mac": mac, "sandbox": a.netns}}, "ips": []any{ip4, ip6},
		"routes": []any{object{"dst": "0.0.0.0/0", "gw": "10.213.0.1"}, object{"dst": "::/0", "gw": "fd13:213::1"}},
		"dns":    object{"nameservers": []any{"10.213.0.1"}}}
}

// ip runs commands of ip(8) on the host, or in a namespace.
func (w *world) ip(netns string, commands ...string) {
	args := []string{"-batch", "-"}
	if netns != "" {
		args = append([]string{"-n", netns}, args...)
	}
	_, err := command(strings.Join(commands, "\n")+"\n", "ip", args...)
	w.noError(err)
}

// call is a call of a plugin.
type call struct {
	program string
	vars    map[string]string
	conf    object
	raw     string        // instead of conf
	path    []string      // CNI_PATH
	bare    bool          // without CNI_PATH
	kill    time.Duration // after this time; 0 means never
}

// set returns a change of a variable; the value "-" removes it.
func set(name, value string) func(*call) {
	return func(c *call) {
		c.vars[name] = value
		if value == "-" {
			delete(c.vars, name)
		}
	}
}

// keys returns a change of keys of the configuration; the value nil removes a key.
func keys(o object) func(*call) { return func(c *call) { c.conf = clone(c.conf, o) } }

// capabilities returns a change of a call that passes values for the declared capabilities.
func (w *world) capabilities() func(*call) {
	args := capabilityArgs(w.Subject.Plugins[0])
	if len(args) == 0 {
		return keys(nil)
	}
	return keys(object{"runtimeConfig": args})
}

// answer is the answer of a plugin.
type answer struct {
	command        string
	exit           int // 128 and more: killed
	stdout, stderr string
}

func (a answer) String() string {
	s := fmt.Sprintf("%s: exit status %d", a.command, a.exit)
	o, err := decodeOne(a.stdout)
	switch {
	case err == nil && o["msg"] != nil:
		s += fmt.Sprintf(", error with code %v: %v", o["code"], text(o, "msg")+" "+text(o, "details"))
	case a.stdout != "":
		s += ", standard output: " + short(a.stdout)
	}
	if a.stderr != "" {
		s += ", standard error: " + short(a.stderr)
	}
	return s
}

// short returns a text as one line of limited length.
func short(s string) string {
	const most = 600
	if s = strings.Join(strings.Fields(s), " "); len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// call calls the plugin for an attachment, or without one if a is nil.
func (w *world) call(command string, a *attachment, changes ...func(*call)) answer {
	conf := w.Subject.Plugins[0]
	vars := map[string]string{"CNI_COMMAND": command}
	if a != nil {
		conf = a.plugin
		vars["CNI_CONTAINERID"], vars["CNI_IFNAME"], vars["CNI_NETNS"] = a.id, a.ifName, a.netns
	}
	c := call{program: w.Subject.program(conf), vars: vars, conf: w.Subject.request(conf, w.Spec), path: w.path}
	switch {
	case a == nil:
	case command == "ADD" && a.prev != nil:
		c.conf["prevResult"] = a.prev
	case command != "ADD" && a.result != nil:
		c.conf["prevResult"] = a.result
	case command != "ADD" && a.prev != nil:
		c.conf["prevResult"] = a.prev
	}
	for _, change := range changes {
		change(&c)
	}
	ans, err := w.exec(c)
	w.noError(err)
	return ans
}

// exec runs a plugin as a runtime does, in a process group of its own.
func (w *world) exec(c call) (answer, error) {
	program, err := find(c.path, c.program)
	if err != nil {
		return answer{}, err
	}
	stdin := []byte(c.raw)
	if c.conf != nil && c.raw == "" {
		if stdin, err = json.Marshal(c.conf); err != nil {
			return answer{}, err
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), callLimit)
	defer stop()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = []string{"PATH=" + defaultPath}
	if !c.bare {
		cmd.Env = append(cmd.Env, "CNI_PATH="+strings.Join(c.path, ":"))
	}
	for name, value := range c.vars {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	slices.Sort(cmd.Env)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, 5*time.Second
	if err := cmd.Start(); err != nil {
		return answer{}, err
	}
	if c.kill > 0 {
		timer := time.AfterFunc(c.kill, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
		defer timer.Stop()
	}
	err = cmd.Wait()
	a := answer{command: c.vars["CNI_COMMAND"], exit: cmd.ProcessState.ExitCode(), stdout: stdout.String(),
		stderr: stderr.String()}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		a.exit = 128 + int(ws.Signal())
	}
	w.mu.Lock()
	w.log = append(w.log, fmt.Sprintf("%s %s <<<'%s'\n  %s", strings.Join(cmd.Env[:len(cmd.Env)-1], " "), c.program,
		stdin, a))
	w.mu.Unlock()
	if ctx.Err() != nil {
		return a, fmt.Errorf("%s of %s did not end within %v", a.command, c.program, callLimit)
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		return a, fmt.Errorf("after %s, a process of %s holds its output open", a.command, c.program)
	}
	return a, nil
}

// defaultPath is PATH of the plugins.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// added serves an ADD that must succeed, and returns its result.
func (w *world) added(a *attachment, changes ...func(*call)) object {
	ans := w.call("ADD", a, changes...)
	w.expect(ans.exit == 0, "ADD failed: %v", ans)
	result, err := decodeOne(ans.stdout)
	w.noError(err)
	a.result = result
	return result
}

// attach creates a container and attaches it.
func (w *world) attach(id string, changes ...func(*call)) *attachment {
	a := w.container(id)
	w.added(a, changes...)
	return a
}

// second attaches another container, if the configuration allows that.
func (w *world) second(id string) *attachment {
	if !w.Info.Many {
		w.skip("the configuration allows one attachment at a time")
	}
	return w.attach(id)
}

// succeeds checks that a command other than ADD and VERSION succeeds.
func (w *world) succeeds(command string, a *attachment, changes ...func(*call)) answer {
	ans := w.call(command, a, changes...)
	w.expect(ans.exit == 0, "%s failed: %v", command, ans)
	return ans
}

// silent checks that a command succeeds without output.
func (w *world) silent(command string, a *attachment, changes ...func(*call)) {
	ans := w.succeeds(command, a, changes...)
	w.noError(Verdict(command, ans.exit, ans.stdout))
}

// fails checks that a command fails with an exit status of its own, and returns the answer.
func (w *world) fails(command string, a *attachment, changes ...func(*call)) answer {
	ans := w.call(command, a, changes...)
	w.expect(ans.exit != 0, "%s succeeded: %v", command, ans)
	w.expect(ans.exit < 128, "a signal ended %s: %v", command, ans)
	return ans
}

// failsWith checks that a command fails with an error object, and returns the object.
func (w *world) failsWith(command string, a *attachment, changes ...func(*call)) object {
	ans := w.fails(command, a, changes...)
	w.noError(Verdict(command, ans.exit, ans.stdout))
	o, err := decodeOne(ans.stdout)
	w.noError(err)
	return o
}

// finish detaches an attachment and what its container had before.
func (w *world) finish(a *attachment, changes ...func(*call)) {
	w.succeeds("DEL", a, changes...)
	w.unmake(a)
}

// unmake removes a container, after the DEL of the preceding plugins.
func (w *world) unmake(a *attachment) {
	for _, conf := range slices.Backward(w.Subject.Before) {
		b := *a
		b.plugin = conf
		w.succeeds("DEL", &b)
	}
	if a.made != "" && a.netns != "" { // the kernel removes it some time after the namespace
		w.ip("", "link del "+a.made)
	}
	if a.netns != "" {
		w.ip("", "netns del "+a.id)
	}
}

// probe finds out the kind of plugin, its versions, and whether the configuration works.
func (w *world) probe() info {
	i := info{Kind: w.Subject.Kind}
	if i.Kind == List {
		i.Supported = w.supported(w.Subject.Plugins)
		return i
	}
	i.Supported = w.supported(append(slices.Clone(w.Subject.Before), w.Subject.Plugins...))
	if w.Spec == "" {
		w.Spec = newest(i.Supported, text(w.Subject.Plugins[0], "cniVersion"))
	}
	guesses := []Kinds{i.Kind}
	if i.Kind == 0 {
		guesses = []Kinds{Interface, Chained}
	}
	var problems []string
	for n, kind := range guesses {
		w.Info.Kind = kind
		begin := time.Now()
		a := w.container(fmt.Sprintf("probe%d", n))
		i.Present = kind == Interface && w.link(a, a.ifName) != nil
		ans := w.call("ADD", a)
		i.Took = time.Since(begin)
		if ans.exit != 0 {
			problems = append(problems, fmt.Sprintf("as %v plugin: %v", kind, ans))
			_ = w.call("DEL", a)
			continue
		}
		if kind == Interface && ipamType(w.Subject.Plugins[0]) != "" {
			kind |= Delegating
		}
		i.Kind = kind
		a.result, _ = decodeOne(ans.stdout) // a case reports what is wrong with it
		second := w.call("ADD", w.container("probe-two"))
		i.Many = second.exit == 0
		b, _ := decodeOne(second.stdout)
		i.Fixed = len(droppedItems(a.result, b, "ips", "address")) == 0
		return i
	}
	panic(verdict{broken, "ADD with the configuration fails: " + strings.Join(problems, "; ")})
}

// supported returns the versions that all these plugins support.
func (w *world) supported(plugins []object) []string {
	all := slices.Clone(versions)
	for _, conf := range plugins {
		o, _ := decodeOne(w.call("VERSION", &attachment{plugin: conf}).stdout)
		all = slices.DeleteFunc(all, func(v string) bool {
			return !slices.Contains(anyList(o["supportedVersions"]), any(v))
		})
	}
	return all
}

// newest returns the newest version of the specification that a plugin supports, or otherwise the configured one.
func newest(supported []string, configured string) string {
	for _, v := range slices.Backward(specs) {
		if slices.Contains(supported, v) {
			return v
		}
	}
	if slices.Contains(specs, configured) {
		return configured
	}
	return specs[0]
}

// script is the observer in the place of an IPAM plugin.
const script = `#!/bin/sh
d=` + own + `
n=$CNI_COMMAND.$$
cat /proc/$$/environ >$d/calls/$n.env
cat >$d/calls/$n.conf
echo $n >>$d/order
echo conformance-delegate-stderr >&2
if [ -e $d/fail.$CNI_COMMAND ]; then
	echo '{"cniVersion":"1.0.0","code":111,"msg":"the delegate fails as the case demands"}'
	exit 1
fi
exec %s <$d/calls/$n.conf
`

// observe puts the script before the IPAM plugin; it returns the change of calls that makes plugins find it.
func (w *world) observe() func(*call) {
	name := ipamType(w.Subject.Plugins[0])
	program, err := find(w.path, name)
	w.noError(err)
	w.noError(os.WriteFile(own+"/delegate/"+name, fmt.Appendf(nil, script, program), 0o755))
	return func(c *call) { c.path = append([]string{own + "/delegate"}, w.path...) }
}

// failDelegate lets the delegate fail a command.
func (w *world) failDelegate(command string) {
	w.noError(os.WriteFile(own+"/fail."+command, nil, 0o644))
}

// delegation is an observed call of the delegate.
type delegation struct {
	command string
	env     map[string]string
	conf    object
}

// delegations returns the calls of the delegate since the last time.
func (w *world) delegations() (all []delegation) {
	order, err := os.ReadFile(own + "/order")
	if err != nil {
		return nil
	}
	_ = os.Remove(own + "/order")
	for name := range strings.FieldsSeq(string(order)) {
		command, _, _ := strings.Cut(name, ".")
		d := delegation{command: command, env: map[string]string{}}
		env, err := os.ReadFile(own + "/calls/" + name + ".env")
		w.noError(err)
		for line := range strings.SplitSeq(string(env), "\x00") {
			key, value, _ := strings.Cut(line, "=")
			d.env[key] = value
		}
		conf, err := os.ReadFile(own + "/calls/" + name + ".conf")
		w.noError(err)
		d.conf, err = decodeOne(string(conf))
		w.expect(err == nil, "the configuration of the delegate: %v", err)
		all = append(all, d)
	}
	return all
}

// commands returns the commands of the delegate's calls since the last time.
func (w *world) commands() (names []string) {
	for _, d := range w.delegations() {
		names = append(names, d.command)
	}
	return names
}
