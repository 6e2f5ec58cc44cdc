package conformance

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
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
	if len(failures) > 0 {
		w.fail("%d of %d simultaneous calls failed: %s", len(failures), len(all), failures[0].(outcome).Detail)
	}
}

func loadConcurrent(w *world) {
	w.needManyAttachments()
	before := w.warmHost()
	w.finish(w.attach())
	isClean := len(before.diff(w.hostState())) == 0 // otherwise del/host and similar cases fail
	all := make([]*attachment, w.Subject.Options.Parallel)
	for i := range all {
		all[i] = w.container()
	}
	w.allAtOnce(all, func(a *attachment) { w.add(a) })
	w.distinct(all)
	w.allAtOnce(all, func(a *attachment) { w.succeeds("DEL", a) })
	for _, a := range all {
		w.removeContainer(a)
	}
	if isClean {
		w.settles(before, "after simultaneous attachments")
	}
}

// distinct checks that no two attachments have the same address, unless the configuration has fixed addresses.
func (w *world) distinct(all []*attachment) {
	owners := map[string]string{}
	for _, a := range all {
		for _, ip := range list(a.result, "ips") {
			address := text(ip, "address")
			owner := cmp.Or(owners[address], a.id)
			w.expect(w.Info.FixedAddresses || owner == a.id, "%s and %s got the same address %s", owner, a.id, address)
			owners[address] = owner
		}
	}
}

// cleansUpAfterKill returns a case in which DEL leaves nothing after a command was killed, at random moments of an ADD.
func cleansUpAfterKill(command string) func(*world) {
	const kills = 8
	return func(w *world) {
		before := w.warmHost()
		for i := range kills {
			a := w.container()
			if command == "DEL" {
				w.add(a)
			}
			after := time.Duration((float64(i) + rand.Float64()) / kills * float64(w.Info.AddTime))
			ans := w.call(command, a, kill(after))
			if command == "ADD" && ans.exit == 0 {
				a.result, _ = decodeOne(ans.stdout)
			}
			w.finish(a)
			w.settles(before, fmt.Sprintf("after %s was killed after %v, and DEL", command, after))
		}
	}
}

// listAttach creates a container and calls ADD of each plugin of the list.
func (w *world) listAttach() *attachment {
	a := w.container()
	for _, conf := range w.Subject.Plugins {
		a.plugin = conf
		a.prev = w.add(a)
	}
	return a
}

// listEach calls a command of each plugin with the last plugin's result, and DEL in reverse order.
func (w *world) listEach(command string, a *attachment, changes ...change) {
	all := slices.Clone(w.Subject.Plugins)
	if command == "DEL" {
		slices.Reverse(all)
	}
	for _, conf := range all {
		a.plugin = conf
		w.succeeds(command, a, changes...)
	}
}

func listAdd(w *world) {
	a := w.container()
	for _, conf := range w.Subject.Plugins {
		a.plugin, a.prev = conf, a.result
		w.add(a)
		missing := append(droppedItems(a.prev, a.result, "interfaces", "name"),
			droppedItems(a.prev, a.result, "ips", "address")...)
		w.expect(len(missing) == 0, "the result of %v lacks what its prevResult has: %v", conf["type"], missing)
	}
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

func listDelTwice(w *world) {
	a := w.listAttach()
	w.listEach("DEL", a)
	w.listEach("DEL", a)
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
