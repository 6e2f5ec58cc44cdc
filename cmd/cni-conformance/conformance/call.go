package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
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

// code returns the code of the error object, or 0.
func (a answer) code() float64 {
	o, _ := decodeOne(a.stdout)
	code, _ := o["code"].(float64)
	return code
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
// for ADD the result of the preceding plugin. A call derives its configuration as a runtime does, before the changes
// apply.
func (w *world) call(command string, a *attachment, changes ...change) answer {
	if a == nil {
		a = &attachment{plugin: w.Subject.Plugins[0]}
	}
	isDisabled := w.Subject.Options.Disabled[command]
	w.need(isDisabled != true && isDisabled != "true", "the list disables "+command)
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

// sink keeps the first MiB that a plugin writes.
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
	ctx, stop := context.WithTimeout(context.Background(), w.limit())
	defer stop()
	cmd := exec.CommandContext(ctx, c.program)
	cmd.Env = append(slices.Clone(env), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	var stdout, stderr sink
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, 5*time.Second
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	w.noError(cmd.Start())
	if c.kill > 0 {
		defer time.AfterFunc(c.kill, func() { _ = cmd.Cancel() }).Stop()
	}
	err := cmd.Wait()
	end := cmd.ProcessState
	a := answer{c.vars["CNI_COMMAND"] + c.note, end.ExitCode(), end.String(), string(stdout.text), string(stderr.text)}
	entry := fmt.Sprintf("%s %s <<<'%s'\n%s", strings.Join(env, " "), filepath.Base(c.program), stdin, a)
	w.mu.Lock()
	w.log = append(w.log, printable(entry))
	w.mu.Unlock()
	w.expect(ctx.Err() == nil, "%s did not end within %v and was killed", a.command, w.limit())
	w.expect(!errors.Is(err, exec.ErrWaitDelay), "%s left a process that holds its output open", a.command)
	return a
}

// succeeds checks that a command succeeds. It repeats the call after an error with code 11 (try again later), as a
// runtime should.
func (w *world) succeeds(command string, a *attachment, changes ...change) answer {
	ans := w.call(command, a, changes...)
	for end := time.Now().Add(w.limit()); ans.exit != 0 && ans.code() == 11 && time.Now().Before(end); {
		<-time.After(100 * time.Millisecond)
		ans = w.call(command, a, changes...)
	}
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

func (w *world) gc(all ...*attachment) { w.succeeds("GC", nil, validAttachments(all...)) }

// object is a JSON object.
type object = map[string]any

// decodeOne decodes text that is exactly one JSON object.
func decodeOne(text string) (object, error) {
	d := json.NewDecoder(strings.NewReader(text))
	var o object
	switch err := d.Decode(&o); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("standard output is empty, not a JSON object")
	case err != nil || o == nil:
		return nil, errors.New("standard output is not a JSON object; logs belong on standard error")
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("standard output has more than one JSON object; logs belong on standard error")
	}
	return o, nil
}

// CheckOutput checks the standard output of a command. With exit status 0 it must be one result object after ADD and
// VERSION, and empty after other commands. Otherwise it must be one error object, whose cniVersion may be missing.
func CheckOutput(command string, exit int, stdout string) error {
	if exit == 0 && command != "ADD" && command != "VERSION" && stdout != "" {
		return fmt.Errorf("a successful %s must print nothing on standard output", command)
	} else if exit == 0 && command != "ADD" && command != "VERSION" {
		return nil
	}
	o, err := decodeOne(stdout)
	switch {
	case err != nil:
		return err
	case exit == 0 && command == "ADD" && o["code"] != nil:
		return errors.New("exit status 0 with an error object, which needs another status")
	case exit == 0:
		return nil
	}
	var form struct {
		Code         uint
		Msg, Details string
	}
	if err := decodeForm(o, &form); err != nil {
		return fmt.Errorf("the error object: %w", err)
	}
	if form.Code == 0 || form.Msg == "" {
		return fmt.Errorf("the error object has code %d and msg %q; both are required", form.Code, form.Msg)
	}
	return nil
}

// CheckResult checks the cniVersion of an ADD result, and the types and values of its keys in the form of that version.
func CheckResult(version string, result map[string]any) error {
	var r resultForm
	if err := errors.Join(sameVersion(version, result), decodeForm(result, &r)); err != nil {
		return err
	}
	if version < "0.3.0" {
		if r.IPs != nil {
			return fmt.Errorf("a result of version %s has the keys ip4 and ip6, not ips", version)
		}
		for _, key := range []string{"ip4", "ip6"} {
			if o, isThere := result[key].(object); isThere && text(o, "ip") == "" {
				return fmt.Errorf("the key %s has no ip", key)
			}
		}
		return nil
	}
	for i, l := range r.Interfaces {
		if _, err := net.ParseMAC(l.Mac); l.Name == "" || l.Mac != "" && err != nil {
			return fmt.Errorf("interfaces[%d] has name %q and mac %q: missing name or wrong mac", i, l.Name, l.Mac)
		}
	}
	for key, name := range map[string]string{"ips": "address", "routes": "dst"} {
		for i, o := range list(result, key) {
			if _, err := netip.ParsePrefix(text(o, name)); err != nil {
				const message = "%s[%d].%s is %v, not an address with a prefix length, such as 10.1.0.2/24"
				return fmt.Errorf(message, key, i, name, o[name])
			}
		}
	}
	for i, ip := range r.IPs {
		if ip.Interface != nil && *ip.Interface >= uint(len(r.Interfaces)) {
			return fmt.Errorf("ips[%d].interface is %d, but interfaces has %d", i, *ip.Interface, len(r.Interfaces))
		}
		want := map[bool]string{true: "4", false: "6"}[strings.Contains(ip.Address, ".")]
		if version < "1.0.0" && ip.Version != want {
			return fmt.Errorf("ips[%d].version of %s is %q, not %q", i, ip.Address, ip.Version, want)
		}
	}
	return nil
}

// resultForm is the form of an ADD result. Decoding into it checks the types and values of the keys that are present.
type resultForm struct {
	Interfaces []struct {
		Name, Mac, Sandbox, SocketPath string
		MTU                            uint
	}
	IPs []struct {
		Address, Version string // the version only before 1.0.0
		Gateway          netip.Addr
		Interface        *uint
	}
	Routes []struct {
		GW                   netip.Addr
		MTU, Priority, Table uint
	}
	DNS struct {
		Nameservers, Search, Options []string
		Domain                       string
	}
	IP4, IP6 struct { // before 0.3.0
		IP      netip.Prefix
		Gateway netip.Addr
	}
}

// decodeForm decodes an object into a form. Its error names a key of a wrong type, or the value of a wrong address.
func decodeForm(o object, form any) error {
	err := json.Unmarshal(encode(o), form)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s has the wrong type: a JSON %s", wrong.Field, wrong.Value)
	} else if err != nil {
		return fmt.Errorf("an ip, gateway or gw is wrong: %w", err)
	}
	return nil
}

// list returns the objects of the list at key, or nil if the key is absent or has another type.
func list(o object, key string) (found []object) {
	for _, v := range anyList(o[key]) {
		if e, ok := v.(object); ok {
			found = append(found, e)
		}
	}
	return found
}

func anyList(v any) []any {
	list, _ := v.([]any)
	return list
}

func text(o object, key string) string {
	s, _ := o[key].(string)
	return s
}

// canonical returns an address or prefix as the kernel's tools print it.
func canonical(s string) string {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.String()
	} else if a, err := netip.ParseAddr(s); err == nil {
		return a.String()
	}
	return s
}

// encode returns the JSON text of a value, which must have one.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// clone returns a deep copy with additional keys; the value nil removes a key.
func clone(o object, more object) object {
	out := object{}
	if err := json.Unmarshal(encode(o), &out); err != nil {
		panic(err)
	}
	maps.Copy(out, more)
	maps.DeleteFunc(out, func(_ string, v any) bool { return v == nil })
	return out
}
