package conformance

import (
	"slices"
	"strings"
)

// gc calls GC with these attachments as the valid ones.
func (w *world) gc(valid ...*attachment) answer {
	return w.succeeds("GC", nil, validAttachments(valid...))
}

func validAttachments(valid ...*attachment) func(*call) {
	all := []any{}
	for _, a := range valid {
		all = append(all, object{"containerID": a.id, "ifname": a.ifName})
	}
	return keys(object{"cni.dev/valid-attachments": all})
}

func gcKeepsValid(w *world) {
	a := w.attach("one")
	valid := []*attachment{a}
	if w.Info.Many {
		valid = append(valid, w.attach("two"))
	}
	before := w.bothStates(a)
	w.gc(valid...)
	w.same(before, w.bothStates(a), "GC changed valid attachments")
	for _, a := range valid {
		w.succeeds("CHECK", a)
	}
}

func gcRemovesStale(w *world) {
	w.finish(w.attach("warm"))
	a := w.attach("one")
	before := w.hostState()
	b := w.second("two")
	w.ip("", "netns del "+b.id) // GC may assume this
	b.netns = ""
	w.unmake(b)
	w.gc(a)
	w.settles(before, "after GC of a stale attachment")
	w.succeeds("CHECK", a)
}

func gcOtherNetwork(w *world) {
	a := w.attach("one")
	before := w.bothStates(a)
	w.succeeds("GC", nil, validAttachments(), keys(object{"name": w.Subject.Network + "-other"}))
	now := slices.DeleteFunc(w.bothStates(a), func(line string) bool { return strings.Contains(line, "-other") })
	w.same(before, now, "GC of another network changed something")
	w.succeeds("CHECK", a)
}
