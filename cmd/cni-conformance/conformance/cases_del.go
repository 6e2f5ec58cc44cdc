package conformance

import (
	"slices"
	"strings"
	"time"
)

// eventCase returns a case about a call after an event. test is succeeds or fails. CHECK must succeed before the event.
func eventCase(event event, test func(*world, string, *attachment, ...change) answer, command string) func(*world) {
	return func(w *world) {
		a := w.attach()
		if command == "CHECK" {
			w.succeeds("CHECK", a)
		}
		what := event(w, a)
		test(w, command, a, func(c *call) { c.note += " after " + what })
	}
}

// event alters an attached container, and returns a description for the report, such as the commands that it ran.
type event func(*world, *attachment) string

func delOnce(w *world, a *attachment) string {
	w.succeeds("DEL", a)
	return "another DEL"
}

func removeInterface(w *world, a *attachment) string { return w.ip(a.id, "link del "+a.ifName) }

func delInterface(w *world) {
	a := w.attach()
	w.succeeds("DEL", a)
	w.expect(w.link(a, a.ifName) == nil, "after DEL, the container still has %s", a.ifName)
}

func delContainer(w *world) {
	w.detach(w.attach())
	a := w.newContainer()
	state := func() snapshot { return w.netState(a.id).about("lo", false) } // the plugin may set up lo
	w.unchanged(state, "after DEL, the container differs from before ADD", func() {
		w.add(a)
		w.succeeds("DEL", a)
	})
}

// delRestores returns a case in which these sections of the host's state are the same before ADD and after DEL.
func delRestores(sections ...string) func(*world) {
	return func(w *world) {
		w.detach(w.attach(w.capabilities()), w.capabilities())
		a := w.newContainer()
		state := func() snapshot { return w.hostState().only(sections...) }
		w.unchanged(state, "after DEL, the host differs from before ADD", func() {
			w.add(a, w.capabilities())
			w.succeeds("DEL", a, w.capabilities())
		})
	}
}

func delPacketFilter(w *world) {
	w.needPrograms("nft", "tc")
	delRestores("nftables", "iptables", "qdisc")(w)
}

// delWith returns a case in which a DEL with a change succeeds and leaves nothing.
func delWith(c change) func(*world) {
	return func(w *world) {
		before := w.warmHost()
		a := w.attach()
		w.succeeds("DEL", a, c)
		w.removeContainer(a)
		w.settles(before, "after DEL")
	}
}

func delNetnsGone(w *world) {
	w.detach(w.attach())
	a := w.newContainer()
	before := w.hostState()
	w.add(a)
	w.ip("", "netns del "+a.id)
	w.succeeds("DEL", a)
	w.awaitNoDiff("after DEL without a namespace, the host differs from before ADD", w.added(before))
}

func delAfterFailedAdd(w *world) {
	before := w.warmHost()
	a := w.newContainer()
	failing := set("CNI_IFNAME", "an-interface-name-that-is-too-long")
	if w.Info.Kind&Delegating != 0 {
		failing = w.observe("ADD")
	}
	w.need(w.call("ADD", a, failing).exit != 0, "ADD does not fail")
	w.detach(a)
	w.settles(before, "after a failed ADD and DEL")
}

func delOthers(w *world) {
	w.needManyAttachments()
	a, b := w.attach(), w.attach()
	state := func() snapshot { return w.netState(a.id) }
	w.unchanged(state, "DEL of another container changed this one", func() { w.succeeds("DEL", b) })
	w.succeeds("CHECK", a)
}

func checkChangesNothing(w *world) {
	a := w.attach()
	w.unchanged(w.bothStates(a), "CHECK changed something", func() { w.succeeds("CHECK", a) })
}

// addRoute adds a route through the first IPv4 gateway, and adds it to the result, as a later plugin may do.
func addRoute(w *world, a *attachment) string {
	for _, ip := range list(a.result, "ips") {
		if gw := text(ip, "gateway"); strings.Contains(gw, ".") {
			routes := append(anyList(a.result["routes"]), object{"dst": "203.0.113.0/24", "gw": gw})
			a.result = clone(a.result, object{"routes": routes})
			return w.ip(a.id, "route add 203.0.113.0/24 via "+gw+" dev "+a.ifName+" onlink")
		}
	}
	return w.skip("the result has no IPv4 gateway")
}

// addInterface adds an interface with an address, and adds both to the result, as a later plugin may do.
func addInterface(w *world, a *attachment) string {
	interfaces := anyList(a.result["interfaces"])
	ip := object{"address": "198.51.100.1/32", "interface": len(interfaces)}
	if w.Spec < "1.0.0" {
		ip["version"] = "4"
	}
	a.result = clone(a.result, object{"ips": append(anyList(a.result["ips"]), ip), "interfaces": append(interfaces,
		object{"name": "later0", "mac": "02:ca:fe:03:00:01", "sandbox": a.netns})})
	return w.ip(a.id, "link add later0 address 02:ca:fe:03:00:01 type veth peer name later1",
		"addr add 198.51.100.1/32 dev later0", "link set later0 up")
}

func removeAddresses(w *world, a *attachment) string {
	w.need(len(addresses(w.link(a, a.ifName))) > 0, "the interface has no address")
	return w.ip(a.id, "addr flush dev "+a.ifName)
}

func removeRoute(w *world, a *attachment) string {
	for _, r := range list(a.result, "routes") {
		family := map[bool]string{true: "-6", false: "-4"}[strings.Contains(text(r, "dst"), ":")]
		if _, err := command("", "ip", family, "-n", a.id, "route", "del", text(r, "dst")); err == nil {
			return "ip route del " + text(r, "dst")
		}
	}
	return w.skip("the main table has no route of the result")
}

func setDown(w *world, a *attachment) string {
	w.need(isUp(w.link(a, a.ifName)), "the interface is not up after ADD")
	return w.ip(a.id, "link set "+a.ifName+" down")
}

func checkRulesMissing(w *world) {
	w.needPrograms("nft")
	a := w.newContainer()
	before := w.rules().only("nftables", "iptables")
	w.add(a, w.capabilities())
	created := before.diff(w.rules().only("nftables", "iptables"))
	w.need(len(created) > 0, "ADD created no nftables or iptables rules")
	w.succeeds("CHECK", a, w.capabilities())
	_, _ = command("", "sh", "-c", `nft flush ruleset
		for t in raw filter nat mangle security; do iptables-legacy -t $t -F; ip6tables-legacy -t $t -F; done`)
	w.fails("CHECK", a, w.capabilities())
}

func gcKeepsValid(w *world) {
	all := []*attachment{w.attach()}
	if w.Info.ManyAttachments {
		all = append(all, w.attach())
	}
	w.unchanged(w.bothStates(all[0]), "GC changed valid attachments", func() { w.gc(all...) })
	for _, a := range all {
		w.succeeds("CHECK", a)
	}
}

func gcRemovesStale(w *world) {
	w.needManyAttachments()
	w.detach(w.attach(w.capabilities()), w.capabilities())
	a, b := w.attach(), w.newContainer()
	before := w.hostState()
	w.add(b, w.capabilities())
	w.ip("", "netns del "+b.id) // a plugin may remove only attachments without a namespace
	w.need(len(remaining(3*time.Second, w.added(before))) > 0, "an attachment leaves nothing without its namespace")
	w.gc(a)
	w.awaitNoDiff("after GC of a stale attachment, the host differs from before ADD", w.added(before))
	w.succeeds("CHECK", a)
}

func gcOtherNetwork(w *world) {
	a := w.attach()
	state := func() snapshot { // GC may create files for the other network, such as a lock
		return slices.DeleteFunc(w.bothStates(a)(), func(line string) bool { return strings.Contains(line, "-other") })
	}
	w.unchanged(state, "GC of another network changed something", func() {
		w.succeeds("GC", nil, validAttachments(), keys(object{"name": w.Subject.Network + "-other"}))
	})
	w.succeeds("CHECK", a)
}
