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
	host, inside := w.hostState(), w.netState(a.id)
	w.gc(valid...)
	diff := append(host.diff(w.hostState()), inside.diff(w.netState(a.id))...)
	w.expect(len(diff) == 0, "GC changed valid attachments:\n    %s", strings.Join(diff, "\n    "))
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
	for _, conf := range slices.Backward(w.Subject.Before) {
		c := *b
		c.plugin = conf
		w.succeeds("DEL", &c)
	}
	w.gc(a)
	w.settles(before, "after GC of a stale attachment")
	w.succeeds("CHECK", a)
}

func gcOtherNetwork(w *world) {
	a := w.attach("one")
	host, inside := w.hostState(), w.netState(a.id)
	w.succeeds("GC", nil, validAttachments(), keys(object{"name": w.Subject.Network + "-other"}))
	diff := append(host.diff(w.hostState()), inside.diff(w.netState(a.id))...)
	diff = slices.DeleteFunc(diff, func(line string) bool { return strings.Contains(line, "-other") })
	w.expect(len(diff) == 0, "GC of another network changed:\n    %s", strings.Join(diff, "\n    "))
	w.succeeds("CHECK", a)
}
