package conformance

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// call is a call of a plugin, before it is executed.
type call struct {
	program string            // path of the executable
	vars    map[string]string // environment variables, except PATH
	conf    object
	raw     string        // standard input if conf is nil
	kill    time.Duration // SIGKILL after this time; 0 means never
	note    string        // description of the changes, which follows the command in the report
}

// change alters a call, and may describe this in its note.
type change func(*call)

func set(name, value string) change {
	return func(c *call) { c.vars[name], c.note = value, fmt.Sprintf("%s with %s=%q", c.note, name, value) }
}

func unset(name string) change {
	return func(c *call) { delete(c.vars, name); c.note += " without " + name }
}

// keys sets keys of the configuration; the value nil removes a key.
func keys(o object) change {
	return func(c *call) { c.conf, c.note = clone(c.conf, o), fmt.Sprintf("%s with %s", c.note, encode(o)) }
}

// raw replaces the configuration with a text, which need not be JSON.
func raw(text string) change {
	return func(c *call) { c.raw, c.conf, c.note = text, nil, fmt.Sprintf("%s with the input %q", c.note, text) }
}

// input replaces the configuration with another one.
func input(o object) change { return func(c *call) { c.conf = o } }

func kill(after time.Duration) change { return func(c *call) { c.kill = after } }

// validAttachments sets the attachments that GC must keep.
func validAttachments(attachments ...*attachment) change {
	all := []any{}
	for _, a := range attachments {
		all = append(all, object{"containerID": a.id, "ifname": a.ifName})
	}
	return func(c *call) { c.conf["cni.dev/valid-attachments"] = all }
}

// capabilities returns a change that passes values for the capabilities that the configuration declares.
func (w *world) capabilities() change {
	args := capabilityArgs(w.Subject.Plugins[0])
	if len(args) == 0 {
		return func(*call) {}
	}
	return keys(object{"runtimeConfig": args})
}

// answer is the answer of a plugin.
type answer struct {
	command        string // with the note of the call
	exit           int    // exit status; -1: killed by a signal
	state          string // exit in words
	stdout, stderr string
}

func (a answer) String() string {
	s := a.command + ": " + a.state
	o, err := decodeOne(a.stdout)
	switch {
	case err == nil && o["msg"] != nil:
		s += fmt.Sprintf(", error with code %v: %s", o["code"], short(fmt.Sprint(o["msg"], " ", text(o, "details"))))
	case a.stdout != "":
		s += ", standard output: " + short(a.stdout)
	}
	if a.stderr != "" {
		s += ", standard error: " + short(a.stderr)
	}
	return s
}

// short returns a text as one line, and omits the middle of a long text.
func short(s string) string {
	if s = strings.Join(strings.Fields(s), " "); len(s) > 600 {
		return s[:200] + " ... " + s[len(s)-400:]
	}
	return s
}

// call calls the plugin for an attachment, or without one if a is nil. Its prevResult is the attachment's result, or
// for ADD that of the preceding plugin. A call derives its configuration as a runtime does, before the changes apply.
func (w *world) call(command string, a *attachment, changes ...change) answer {
	if a == nil {
		a = &attachment{plugin: w.Subject.Plugins[0]}
	}
	if v := w.Subject.Options.Disabled[command]; v == true || v == "true" {
		w.skip("the list disables " + command)
	}
	name := text(a.plugin, "type")
	if w.Subject.Kind == IPAM {
		name = w.Subject.Name
	}
	program, err := find(w.path, name)
	w.noError(err)
	c := call{program: program}
	c.conf = clone(a.plugin, object{"cniVersion": w.Spec, "name": w.Subject.Network, "capabilities": nil})
	c.vars = map[string]string{"CNI_COMMAND": command, "CNI_PATH": strings.Join(w.path, ":")}
	if a.id != "" {
		c.vars["CNI_CONTAINERID"], c.vars["CNI_IFNAME"], c.vars["CNI_NETNS"] = a.id, a.ifName, a.netns
	}
	if a.prev != nil {
		c.conf["prevResult"] = a.prev
	}
	if a.result != nil && command != "ADD" {
		c.conf["prevResult"] = a.result
	}
	for _, change := range changes {
		change(&c)
	}
	return w.exec(c)
}

// sink has what a plugin writes, without the rest of more than a MiB.
type sink struct{ text []byte }

func (s *sink) Write(p []byte) (int, error) {
	s.text = append(s.text, p[:min(len(p), 1<<20-len(s.text))]...)
	return len(p), nil
}

// exec runs a plugin in a new process group, and logs the call. All its processes must end or close the output in time.
func (w *world) exec(c call) answer {
	stdin := []byte(c.raw)
	if c.conf != nil {
		stdin = encode(c.conf)
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(c.vars)) {
		env = append(env, name+"="+c.vars[name])
	}
	ctx, stop := context.WithTimeout(context.Background(), cmp.Or(c.kill, w.limit()))
	defer stop()
	cmd := exec.CommandContext(ctx, c.program)
	cmd.Env = append(slices.Clone(env), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	var stdout, stderr sink
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, 5*time.Second
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	w.noError(cmd.Start())
	err := cmd.Wait()
	end := cmd.ProcessState
	a := answer{c.vars["CNI_COMMAND"] + c.note, end.ExitCode(), end.String(), string(stdout.text), string(stderr.text)}
	entry := fmt.Sprintf("%s %s <<<'%s'\n%s", strings.Join(env, " "), filepath.Base(c.program), stdin, a)
	w.mu.Lock()
	w.log = append(w.log, printable(entry))
	w.mu.Unlock()
	w.expect(c.kill > 0 || ctx.Err() == nil, "%s did not end within %v and was killed", a.command, w.limit())
	w.expect(!errors.Is(err, exec.ErrWaitDelay), "%s left a process that holds its output open", a.command)
	return a
}

// succeeds checks that a command succeeds.
func (w *world) succeeds(command string, a *attachment, changes ...change) answer {
	ans := w.call(command, a, changes...)
	w.expect(ans.exit == 0, "expected success: %v", ans)
	return ans
}

// add calls ADD, which must succeed, and returns the result.
func (w *world) add(a *attachment, changes ...change) object {
	a.result = w.decode(w.succeeds("ADD", a, changes...))
	return a.result
}

// fails checks that a command fails, but not by a signal.
func (w *world) fails(command string, a *attachment, changes ...change) answer {
	ans := w.call(command, a, changes...)
	w.expect(ans.exit > 0, "expected a failure with an exit status that is not 0: %v", ans)
	return ans
}

func (w *world) decode(ans answer) object {
	o, err := decodeOne(ans.stdout)
	w.noError(err)
	return o
}

// gc calls GC, which must succeed, with these valid attachments.
func (w *world) gc(all ...*attachment) { w.succeeds("GC", nil, validAttachments(all...)) }
