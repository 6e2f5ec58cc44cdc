package conformance

import (
	"encoding/json"
	"slices"
	"strings"
)

func delInterface(w *world) {
	if w.Info.Present {
		w.skip("the plugin does not create an interface")
	}
	a := w.attach("one")
	w.succeeds("DEL", a)
	w.expect(!slices.Contains(w.links(a), a.ifName), "after DEL, the container still has %s", a.ifName)
}

func delContainer(w *world) {
	w.finish(w.attach("warm"))
	a := w.container("one")
	state := func() snapshot { // without lo, which the plugin may set up
		return slices.DeleteFunc(w.netState(a.id), func(line string) bool {
			return strings.HasPrefix(line, "link lo ") || strings.Contains(line, " dev lo ") ||
				strings.HasSuffix(line, " on lo")
		})
	}
	before := state()
	w.added(a)
	w.succeeds("DEL", a)
	w.same(before, state(), "after DEL, the container differs from before ADD")
}

// delLeaves checks that DEL leaves nothing in sections of the host's state.
func (w *world) delLeaves(sections ...string) {
	w.finish(w.attach("warm", w.capabilities()), w.capabilities())
	a := w.container("one")
	before := w.hostState().only(sections...)
	w.added(a, w.capabilities())
	w.succeeds("DEL", a, w.capabilities())
	w.same(before, w.hostState().only(sections...), "after DEL, the host differs from before ADD")
}

func delTwice(w *world) {
	a := w.attach("one")
	w.succeeds("DEL", a)
	w.succeeds("DEL", a)
}

func delInterfaceMissing(w *world) {
	a := w.attach("one")
	if w.Info.Present {
		w.skip("the interface cannot be removed")
	}
	w.ip(a.id, "link del "+a.ifName)
	w.succeeds("DEL", a)
}

// delWith checks that a DEL with less information succeeds and leaves nothing.
func (w *world) delWith(less func(*call)) {
	before := w.warmHost()
	a := w.attach("one")
	w.succeeds("DEL", a, less)
	w.unmake(a)
	w.settles(before, "after DEL")
}

func delNetnsGone(w *world) {
	w.finish(w.attach("warm"))
	a := w.container("one")
	before := w.hostState()
	w.added(a)
	w.ip("", "netns del "+a.id)
	w.succeeds("DEL", a)
	w.leavesNothing(before, "after DEL of a container whose namespace is gone")
}

// leavesNothing checks that the host gets nothing in addition to the snapshot. Lines of the snapshot may be missing,
// because devices inside a namespace disappear with it, including devices of preceding plugins.
func (w *world) leavesNothing(before snapshot, when string) {
	w.settlesTo(before, func() snapshot { return append(w.hostState(), before...) }, when)
}

func delAfterFailedAdd(w *world) {
	before := w.warmHost()
	a := w.container("one")
	if w.Info.Kind&Delegating != 0 {
		delegate := w.observe()
		w.failDelegate("ADD")
		w.fails("ADD", a, delegate)
	} else {
		w.fails("ADD", a, set("CNI_IFNAME", "an-interface-name-that-is-too-long"))
	}
	w.finish(a)
	w.settles(before, "after a failed ADD and DEL")
}

func delOthers(w *world) {
	a := w.attach("one")
	b := w.second("two")
	before := w.netState(a.id)
	w.succeeds("DEL", b)
	w.same(before, w.netState(a.id), "DEL of another container changed this one")
	w.succeeds("CHECK", a)
}

// observed attaches a container with the observer, and returns what a command needs.
func (w *world) observed(command string) (a *attachment, changes []func(*call)) {
	delegate := w.observe()
	changes = []func(*call){delegate}
	switch command {
	case "ADD":
		return w.container("one"), changes
	case "STATUS":
		return nil, changes
	}
	a = w.attach("one", delegate)
	if command == "GC" {
		return nil, append(changes, validAttachments(a))
	}
	return a, changes
}

func (w *world) delegates(command string) {
	a, changes := w.observed(command)
	w.delegations()
	w.succeeds(command, a, changes...)
	got := w.commands()
	w.expect(slices.Contains(got, command), "%s does not call the IPAM plugin with it; calls: %v", command, got)
}

func (w *world) delegateError(command string) {
	a, changes := w.observed(command)
	w.failDelegate(command)
	w.fails(command, a, changes...)
}

// observation is the IPAM plugin's ADD, and the environment and the configuration that the plugin received.
func (w *world) observation() (d delegation, vars map[string]string, conf object) {
	a, changes := w.observed("ADD")
	changes = append(changes, set("CNI_ARGS", "IgnoreUnknown=1"), set("CNI_CONFORMANCE", "a variable of the runtime"),
		keys(object{"conformanceUnknownKey": object{"b": "2", "a": []any{1.0, nil}}}),
		func(c *call) {
			vars, conf = c.vars, c.conf
			vars["CNI_PATH"] = strings.Join(c.path, ":")
		})
	w.succeeds("ADD", a, changes...)
	for _, d := range w.delegations() {
		if d.command == "ADD" {
			return d, vars, conf
		}
	}
	w.fail("ADD does not call the IPAM plugin")
	return delegation{}, nil, nil
}

func delegateEnvironment(w *world) {
	d, vars, _ := w.observation()
	for name, value := range vars {
		w.expect(d.env[name] == value, "the IPAM plugin received %s=%q, not %q", name, d.env[name], value)
	}
}

func delegateConfiguration(w *world) {
	d, _, conf := w.observation()
	got, _ := json.Marshal(d.conf)
	want, _ := json.Marshal(clone(conf, nil))
	w.expect(string(got) == string(want), "the IPAM plugin received\n    %s\n  and the plugin\n    %s", got, want)
}

// delegateType puts a program where a name with a slash leads, and checks that the plugin does not run it.
func delegateType(w *world) {
	delegate := w.observe()
	ipam, _ := w.Subject.Plugins[0]["ipam"].(object)
	bad := clone(ipam, object{"type": "../delegate/" + text(ipam, "type")})
	ans := w.call("ADD", w.container("one"), delegate, keys(object{"ipam": bad}))
	w.expect(ans.exit != 0 && len(w.delegations()) == 0, "ADD ran the IPAM plugin %v: %v", bad["type"], ans)
}

func delegateStderr(w *world) {
	a, changes := w.observed("ADD")
	ans := w.succeeds("ADD", a, changes...)
	w.expect(strings.Contains(ans.stderr, "conformance-delegate-stderr"),
		"the plugin's standard error does not contain the IPAM plugin's")
}

func delegateDelAfterFailedAdd(w *world) {
	a, changes := w.observed("ADD")
	w.failDelegate("ADD")
	w.fails("ADD", a, changes...)
	got := w.commands()
	w.expect(slices.Contains(got, "DEL"), "after its failed ADD, the IPAM plugin was not called with DEL: %v", got)
}

func delegateFailedAdd(w *world) {
	w.finish(w.attach("warm"))
	a, changes := w.observed("ADD")
	state := func() snapshot {
		return w.bothStates(a).only("link", "address", "route", "rule", "nftables", "iptables")
	}
	before := state()
	w.failDelegate("ADD")
	w.fails("ADD", a, changes...)
	w.same(before, state(), "a failed ADD left something")
}
