package conformance

import (
	"slices"
	"strings"
)

func checkChangesNothing(w *world) {
	a := w.attach("one")
	before := w.bothStates(a)
	w.succeeds("CHECK", a)
	w.same(before, w.bothStates(a), "CHECK changed something")
}

// checkLaterRoute does what a later plugin may do: it adds a route by the gateway of the first address, and reports it.
func checkLaterRoute(w *world) {
	a := w.attach("one")
	for _, ip := range list(a.result, "ips") {
		if gw := text(ip, "gateway"); strings.Contains(gw, ".") {
			w.ip(a.id, "route add 203.0.113.0/24 via "+gw+" dev "+a.ifName+" onlink")
			routes := append(anyList(a.result["routes"]), object{"dst": "203.0.113.0/24", "gw": gw})
			a.result = clone(a.result, object{"routes": routes})
			w.succeeds("CHECK", a)
			return
		}
	}
	w.skip("the result has no gateway")
}

// checkLaterInterface adds an interface with an address, as a later plugin may do, and reports them.
func checkLaterInterface(w *world) {
	a := w.attach("one")
	w.ip(a.id, "link add later0 address 02:ca:fe:03:00:01 type veth peer name later1",
		"addr add 198.51.100.1/32 dev later0", "link set later0 up")
	interfaces := anyList(a.result["interfaces"])
	ip := object{"address": "198.51.100.1/32", "interface": len(interfaces)}
	if w.Spec < "1.0.0" {
		ip["version"] = "4"
	}
	a.result = clone(a.result, object{"ips": append(anyList(a.result["ips"]), ip), "interfaces": append(interfaces,
		object{"name": "later0", "mac": "02:ca:fe:03:00:01", "sandbox": a.netns})})
	w.succeeds("CHECK", a)
}

func checkInterfaceMissing(w *world) {
	a := w.attach("one")
	if w.Info.Present {
		w.skip("the interface cannot be removed")
	}
	w.ip(a.id, "link del "+a.ifName)
	w.fails("CHECK", a)
}

func checkAddressMissing(w *world) {
	a := w.attach("one")
	all := w.addresses(a, a.ifName)
	if len(all) == 0 {
		w.skip("the interface has no address")
	}
	w.ip(a.id, "addr flush dev "+a.ifName)
	w.fails("CHECK", a)
}

func checkRouteMissing(w *world) {
	a := w.attach("one")
	for _, r := range list(a.result, "routes") {
		family := map[bool]string{true: "-6", false: "-4"}[strings.Contains(text(r, "dst"), ":")]
		if _, err := command("", "ip", family, "-n", a.id, "route", "del", text(r, "dst")); err == nil {
			w.fails("CHECK", a)
			return
		}
	}
	w.skip("the result has no route of the main table")
}

func checkInterfaceDown(w *world) {
	a := w.attach("one")
	if !isUp(w.link(a, a.ifName)) {
		w.skip("the interface is not up after ADD")
	}
	w.ip(a.id, "link set "+a.ifName+" down")
	w.fails("CHECK", a)
}

func checkRulesMissing(w *world) {
	a := w.container("one")
	before := w.rules().only("nftables", "iptables")
	w.added(a, w.capabilities())
	if len(before.diff(w.rules().only("nftables", "iptables"))) == 0 {
		w.skip("ADD created no rules of the packet filter")
	}
	_, err := command("", "nft", "flush", "ruleset")
	w.noError(err)
	for _, family := range []string{"ip", "ip6"} {
		for _, table := range []string{"filter", "nat", "mangle"} {
			_, _ = command("", family+"tables-legacy", "-t", table, "-F")
		}
	}
	w.fails("CHECK", a, w.capabilities())
}

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
	if !w.Info.Many {
		w.skip("the configuration allows one attachment at a time")
	}
	b := w.container("two")
	before := w.hostState()
	w.added(b)
	w.ip("", "netns del "+b.id) // GC may assume this
	w.gc(a)
	w.leavesNothing(before, "after GC of a stale attachment")
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
