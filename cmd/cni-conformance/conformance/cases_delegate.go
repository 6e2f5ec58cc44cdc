package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// observer is a script in the place of the IPAM plugin. It records the call, fails if the file fail.COMMAND exists, and
// otherwise executes the IPAM plugin.
const observer = `#!/bin/sh
call=` + suiteDir + `/calls/$CNI_COMMAND.$$
cat /proc/$$/environ >$call.env
cat >$call.conf
echo conformance-delegate-stderr >&2
if [ -e ` + suiteDir + `/fail.$CNI_COMMAND ]; then
	echo '{"cniVersion":"%s","code":111,"msg":"the delegate fails as the case demands"}'
	exit 1
fi
exec %s <$call.conf
`

// observe writes the observer, and returns the change that makes plugins find it before the IPAM plugin.
func (w *world) observe() change {
	name := ipamType(w.Subject.Plugins[0])
	program, err := find(w.path, name)
	w.noError(err)
	w.noError(os.WriteFile(suiteDir+"/delegate/"+name, fmt.Appendf(nil, observer, w.Spec, program), 0o755))
	return func(c *call) { c.vars["CNI_PATH"] = suiteDir + "/delegate:" + c.vars["CNI_PATH"] }
}

// failDelegate makes the observer fail when it is called with a command.
func (w *world) failDelegate(command string) {
	w.noError(os.WriteFile(suiteDir+"/fail."+command, nil, 0o644))
}

// observed returns the environments (part "env") or inputs (part "conf") of the IPAM plugin's calls with a command.
func (w *world) observed(command, part string) (all []string) {
	files, _ := filepath.Glob(suiteDir + "/calls/" + command + ".*." + part)
	for _, file := range files {
		data, err := os.ReadFile(file)
		w.noError(err)
		all = append(all, string(data))
	}
	return all
}

// delegates returns a case in which the plugin calls the IPAM plugin with the same command.
func delegates(command string) func(*world) {
	return func(w *world) {
		a, changes := w.prepare(command, w.observe())
		w.succeeds(command, a, changes...)
		w.expect(len(w.observed(command, "conf")) > 0, "the IPAM plugin was not called with CNI_COMMAND=%s", command)
	}
}

// delegateError returns a case in which a command fails if the IPAM plugin fails.
func delegateError(command string) func(*world) {
	return func(w *world) {
		a, changes := w.prepare(command, w.observe())
		w.failDelegate(command)
		w.fails(command, a, changes...)
	}
}

// observedAdd calls ADD with values that the IPAM plugin must receive, and returns the plugin's own call.
func (w *world) observedAdd(changes ...change) (c call) {
	w.attach(append(changes, w.observe(), func(last *call) { c = *last })...)
	w.expect(len(w.observed("ADD", "conf")) > 0, "ADD did not call the IPAM plugin")
	return c
}

func delegateEnvironment(w *world) {
	c := w.observedAdd(set("CNI_ARGS", "IgnoreUnknown=1"), set("CNI_CONFORMANCE", "a variable of the runtime"))
	env := strings.Split(w.observed("ADD", "env")[0], "\x00")
	for name, value := range c.vars {
		w.expect(slices.Contains(env, name+"="+value), "the IPAM plugin did not receive %s=%s", name, value)
	}
}

func delegateConfiguration(w *world) {
	more := object{"conformanceUnknownKey": object{"b": "2", "a": []any{1.0, nil}}}
	want := string(encode(w.observedAdd(keys(more)).conf))
	got := w.observed("ADD", "conf")[0]
	o, _ := decodeOne(got)
	w.expect(string(encode(o)) == want, "the IPAM plugin received\n    %s\n  but the plugin\n    %s", got, want)
}

// delegateType checks that the plugin does not run an IPAM plugin whose type has slashes, although the path exists.
func delegateType(w *world) {
	ipam, _ := w.Subject.Plugins[0]["ipam"].(object)
	bad := clone(ipam, object{"type": "../delegate/" + text(ipam, "type")})
	ans := w.call("ADD", w.container(), w.observe(), keys(object{"ipam": bad}))
	w.expect(ans.exit != 0 && len(w.observed("ADD", "conf")) == 0, "ADD accepts ipam.type %v: %v", bad["type"], ans)
}

func delegateStderr(w *world) {
	ans := w.succeeds("ADD", w.container(), w.observe())
	const message = "the plugin's standard error lacks what the IPAM plugin wrote to its own"
	w.expect(strings.Contains(ans.stderr, "conformance-delegate-stderr"), message)
}

func delegateDelAfterFailedAdd(w *world) {
	delegateError("ADD")(w)
	w.expect(len(w.observed("DEL", "conf")) > 0, "after its failed ADD, the IPAM plugin was not called with DEL")
}

func delegateFailedAdd(w *world) {
	w.finish(w.attach())
	a := w.container()
	state := func() snapshot {
		return w.bothStates(a)().only("link", "address", "route", "rule", "nftables", "iptables")
	}
	w.failDelegate("ADD")
	w.unchanged(state, "ADD left something after the IPAM plugin failed", func() { w.fails("ADD", a, w.observe()) })
}
