package conformance

import (
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
	before := w.warmHost()
	a := w.attach("one")
	w.ip("", "netns del "+a.id)
	w.succeeds("DEL", a)
	a.netns = "" // it exists no longer
	w.unmake(a)
	w.settles(before, "after DEL of a container whose namespace is gone")
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
