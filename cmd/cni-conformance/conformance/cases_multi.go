package conformance

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// allAtOnce calls do for all attachments simultaneously, and fails the case if one of them fails it.
func (w *world) allAtOnce(all []*attachment, do func(a *attachment)) {
	failures := make([]any, len(all))
	var group sync.WaitGroup
	for i, a := range all {
		group.Go(func() {
			defer func() { failures[i] = recover() }()
			do(a)
		})
	}
	group.Wait()
	failures = slices.DeleteFunc(failures, func(f any) bool { return f == nil })
	for _, f := range failures {
		w.expect(false, "%d of %d simultaneous calls failed: %s", len(failures), len(all), f.(outcome).Detail)
	}
}

func loadConcurrent(w *world) {
	w.needManyAttachments()
	before := w.warmHost()
	w.detach(w.attach())
	isClean := len(before.diff(w.hostState())) == 0 // otherwise del/host and similar cases fail
	all := make([]*attachment, w.Subject.Options.Parallel)
	for i := range all {
		all[i] = w.newContainer()
	}
	w.allAtOnce(all, func(a *attachment) { w.add(a) })
	owners := map[string]string{} // of the addresses
	for _, a := range all {
		for _, ip := range list(a.result, "ips") {
			address := text(ip, "address")
			owner := cmp.Or(owners[address], a.id)
			w.expect(w.Info.FixedAddresses || owner == a.id, "%s and %s got the same address %s", owner, a.id, address)
			owners[address] = owner
		}
	}
	w.allAtOnce(all, func(a *attachment) { w.succeeds("DEL", a) })
	for _, a := range all {
		w.removeContainer(a)
	}
	if isClean {
		w.settles(before, "after simultaneous attachments")
	}
}

// cleansUpAfterKill returns a case in which DEL leaves nothing after a command was killed at random moments.
func cleansUpAfterKill(command string) func(*world) {
	const kills = 8
	return func(w *world) {
		before, killed, took := w.warmHost(), 0, time.Duration(0)
		for i := range kills + 1 { // after is 0 for the first call, which is not killed, and 1 ns for the second one
			a := w.newContainer()
			if command == "DEL" {
				w.add(a)
			}
			after := time.Duration(float64(min(i, 1)) + float64(i-1)*(0.5+rand.Float64())/kills*float64(took))
			begin := time.Now()
			ans := w.call(command, a, kill(after))
			if took = cmp.Or(took, time.Since(begin)); ans.exit < 0 {
				killed++
			}
			if command == "ADD" && ans.exit == 0 {
				a.result, _ = decodeOne(ans.stdout)
			}
			w.detach(a)
			w.settles(before, fmt.Sprintf("after %s, killed after %v (0s: not killed), and DEL", command, after))
		}
		w.need(killed > 0, command+" ended before each moment at which it should be killed")
	}
}

// listAttach creates a container and calls ADD of each plugin of the list.
func (w *world) listAttach() *attachment {
	a := w.newContainer()
	for _, conf := range w.Subject.Plugins {
		a.plugin = conf
		a.prev = w.add(a)
	}
	return a
}

// listEach calls a command of each plugin with the last plugin's result, and DEL in reverse order. It returns a.
func (w *world) listEach(command string, a *attachment, changes ...change) *attachment {
	all := slices.Clone(w.Subject.Plugins)
	if command == "DEL" {
		slices.Reverse(all)
	}
	for _, conf := range all {
		a.plugin = conf
		w.succeeds(command, a, changes...)
	}
	return a
}

func listAdd(w *world) {
	a, items := w.newContainer(), 0
	for _, conf := range w.Subject.Plugins {
		a.plugin, a.prev = conf, a.result
		w.add(a)
		missing := append(droppedItems(a.prev, a.result, "interfaces", "name"),
			droppedItems(a.prev, a.result, "ips", "address")...)
		w.expect(len(missing) == 0, "the result of %v lacks what its prevResult has: %v", conf["type"], missing)
		items += len(list(a.prev, "interfaces")) + len(list(a.prev, "ips"))
	}
	w.need(items > 0, "no prevResult has interfaces or ips")
}

// listLeavesNothing returns a case in which do, which attaches a container and detaches it, leaves nothing on the host.
func listLeavesNothing(do func(w *world)) func(*world) {
	return func(w *world) {
		a := w.listAttach()
		w.listEach("DEL", a)
		w.ip("", "netns del "+a.id)
		before := w.hostState()
		do(w)
		w.settles(before, "after DEL of the list")
	}
}

func listDelWithoutPrevResult(w *world) {
	a := w.listAttach()
	w.ip("", "netns del "+a.id)
	w.listEach("DEL", a, keys(object{"prevResult": nil}), unset("CNI_NETNS"))
}

func listGC(w *world) {
	a := w.listAttach()
	w.unchanged(w.bothStates(a), "GC changed a valid attachment", func() {
		for _, conf := range w.Subject.Plugins {
			w.succeeds("GC", &attachment{plugin: conf}, validAttachments(a))
		}
	})
	w.listEach("CHECK", a)
}

// observe returns a change with which plugins find the observer in the place of the IPAM plugin. It is a script that
// records the call, fails if it is one of the failing commands, and otherwise executes the IPAM plugin.
func (w *world) observe(failing ...string) change {
	for _, command := range failing {
		w.noError(os.WriteFile(suiteDir+"/fail."+command, nil, 0o644))
	}
	name := ipamType(w.Subject.Plugins[0])
	program, err := find(w.path, name)
	w.noError(err)
	observer := render("observer.tmpl", object{"Dir": suiteDir, "Spec": w.Spec, "Program": program})
	w.noError(os.WriteFile(suiteDir+"/delegate/"+name, observer, 0o755))
	return func(c *call) { c.vars["CNI_PATH"] = suiteDir + "/delegate:" + c.vars["CNI_PATH"] }
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

// failsByDelegate checks that a command fails after the IPAM plugin failed. It skips the case if that is not called.
func (w *world) failsByDelegate(command string, a *attachment, changes ...change) {
	ans := w.call(command, a, changes...)
	w.need(len(w.observed(command, "conf")) > 0, "the plugin does not call the IPAM plugin with "+command)
	w.expect(ans.exit > 0, "expected a failure, because the IPAM plugin failed: %v", ans)
}

// delegateError returns a case in which a command fails if the IPAM plugin fails.
func delegateError(command string) func(*world) {
	return func(w *world) {
		a, changes := w.prepare(command, w.observe(command))
		w.failsByDelegate(command, a, changes...)
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
	w.detach(w.attach())
	ipam, _ := w.Subject.Plugins[0]["ipam"].(object)
	bad := clone(ipam, object{"type": "../delegate/" + text(ipam, "type")})
	ans := w.call("ADD", w.newContainer(), w.observe(), keys(object{"ipam": bad}))
	w.expect(ans.exit != 0 && len(w.observed("ADD", "conf")) == 0, "ADD accepts ipam.type %v: %v", bad["type"], ans)
}

func delegateStderr(w *world) {
	ans := w.succeeds("ADD", w.newContainer(), w.observe())
	const message = "the plugin's standard error lacks what the IPAM plugin wrote to its own"
	w.expect(strings.Contains(ans.stderr, "conformance-delegate-stderr"), message)
}

func delegateDelAfterFailedAdd(w *world) {
	delegateError("ADD")(w)
	w.expect(len(w.observed("DEL", "conf")) > 0, "after its failed ADD, the IPAM plugin was not called with DEL")
}

func delegateFailedAdd(w *world) {
	w.detach(w.attach())
	a := w.newContainer()
	state := func() snapshot {
		return w.bothStates(a)().only("link", "address", "route", "rule", "nftables", "iptables")
	}
	w.unchanged(state, "the failed ADD left something", func() { w.failsByDelegate("ADD", a, w.observe("ADD")) })
}
