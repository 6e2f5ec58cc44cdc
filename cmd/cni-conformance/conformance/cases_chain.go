package conformance

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// listAttach attaches a container to the list.
func (w *world) listAttach(id string) *attachment {
	a := w.container(id)
	for _, conf := range w.Subject.Plugins {
		a.plugin = conf
		a.prev = w.added(a)
	}
	return a
}

// listEach calls a command of each plugin, DEL in reverse order, with the final result.
func (w *world) listEach(command string, a *attachment, changes ...func(*call)) {
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
	a := w.container("one")
	var former object
	for _, conf := range w.Subject.Plugins {
		a.plugin, a.prev = conf, former
		result := w.added(a)
		if former != nil {
			missing := droppedItems(former, result, "interfaces", "name")
			missing = append(missing, droppedItems(former, result, "ips", "address")...)
			w.expect(len(missing) == 0, "the result of %v lacks what its prevResult has: %v", conf["type"], missing)
		}
		former = result
	}
}

func (w *world) warmList() snapshot {
	a := w.listAttach("warm")
	w.listEach("DEL", a)
	w.ip("", "netns del warm")
	return w.hostState()
}

func listDel(w *world) {
	before := w.warmList()
	a := w.listAttach("one")
	w.listEach("DEL", a)
	w.listEach("DEL", a)
	w.settles(before, "after DEL of the list")
}

func listDelWithoutPrevResult(w *world) {
	before := w.warmList()
	a := w.listAttach("one")
	w.ip("", "netns del one")
	w.listEach("DEL", a, keys(object{"prevResult": nil}), set("CNI_NETNS", "-"))
	w.settles(before, "after DEL of the list without prevResult and CNI_NETNS")
}

func listPartial(w *world) {
	before := w.warmList()
	a := w.container("one")
	a.plugin = w.Subject.Plugins[0]
	w.added(a)
	w.listEach("DEL", a)
	w.settles(before, "after ADD of the first plugin and DEL of all")
}

func listGC(w *world) {
	a := w.listAttach("one")
	before := w.bothStates(a)
	for _, conf := range w.Subject.Plugins {
		w.succeeds("GC", &attachment{plugin: conf}, validAttachments(a))
	}
	w.same(before, w.bothStates(a), "GC changed a valid attachment")
	w.listEach("CHECK", a)
}

// atOnce calls do for each attachment at the same time, and fails with one of the failures.
func (w *world) atOnce(all []*attachment, do func(a *attachment) answer) {
	answers := make([]answer, len(all))
	failures := make([]any, len(all))
	var group sync.WaitGroup
	for i, a := range all {
		group.Go(func() {
			defer func() { failures[i] = recover() }()
			answers[i] = do(a)
		})
	}
	group.Wait()
	var bad []string
	for i, ans := range answers {
		if failures[i] != nil {
			panic(failures[i])
		}
		if ans.exit != 0 {
			bad = append(bad, ans.String())
		}
	}
	if len(bad) > 0 {
		w.fail("%d of %d calls failed at the same time, for example %s", len(bad), len(all), bad[0])
	}
}

func loadConcurrent(w *world) {
	if !w.Info.Many {
		w.skip("the configuration allows one attachment at a time")
	}
	before := w.warmHost()
	var all []*attachment
	for i := range w.Subject.Options.Parallel {
		all = append(all, w.container(fmt.Sprintf("c%d", i)))
	}
	w.atOnce(all, func(a *attachment) answer {
		ans := w.call("ADD", a)
		a.result, _ = decodeOne(ans.stdout)
		return ans
	})
	w.distinct(all)
	w.atOnce(all, func(a *attachment) answer { return w.call("DEL", a) })
	for _, a := range all {
		w.unmake(a)
	}
	w.settles(before, "after attachments at the same time")
}

// distinct checks that no two attachments have the same address, unless the configuration itself has the addresses.
func (w *world) distinct(all []*attachment) {
	owners := map[string][]string{}
	for _, a := range all {
		for _, ip := range list(a.result, "ips") {
			if ids := owners[text(ip, "address")]; !slices.Contains(ids, a.id) { // two interfaces may have it
				owners[text(ip, "address")] = append(ids, a.id)
			}
		}
	}
	for _, address := range slices.Sorted(maps.Keys(owners)) {
		ids := owners[address]
		w.expect(w.Info.Fixed || len(ids) == 1, "the containers %v have the same address %s", ids, address)
	}
}

// kills is the number of calls that a case kills.
const kills = 8

// moment returns a random moment of the n-th of several equal parts of a duration.
func moment(n int, took time.Duration) time.Duration {
	return time.Duration((float64(n) + rand.Float64()) / kills * float64(took))
}

func kill(after time.Duration) func(*call) { return func(c *call) { c.kill = after } }

func loadKilledAdd(w *world) {
	before := w.warmHost()
	for i := range kills {
		a := w.container(fmt.Sprintf("c%d", i))
		after := moment(i, w.Info.Took)
		ans := w.call("ADD", a, kill(after))
		if ans.exit == 0 {
			a.result, _ = decodeOne(ans.stdout)
		}
		w.finish(a)
		w.settles(before, fmt.Sprintf("after an ADD killed after %v, and DEL", after.Round(time.Microsecond)))
	}
}

func loadKilledDel(w *world) {
	before := w.warmHost()
	for i := range kills {
		a := w.attach(fmt.Sprintf("c%d", i))
		after := moment(i, w.Info.Took)
		w.call("DEL", a, kill(after))
		w.finish(a)
		w.settles(before, fmt.Sprintf("after a DEL killed after %v, and DEL", after.Round(time.Microsecond)))
	}
}
