package conformance

import (
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
			w.ip(a.id, "route add 203.0.113.0/24 via "+gw+" dev "+a.ifName)
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
	var commands []string
	for _, r := range list(a.result, "routes") {
		if w.hasRoute(a, r) {
			dst := text(r, "dst")
			command := map[bool]string{true: "-6 route del ", false: "route del "}[strings.Contains(dst, ":")] + dst
			commands = append(commands, command)
			break
		}
	}
	if commands == nil {
		w.skip("the result has no route")
	}
	if _, err := command("", "ip", append([]string{"-n", a.id}, strings.Fields(commands[0])...)...); err != nil {
		w.skip("the route is not in the main table")
	}
	w.fails("CHECK", a)
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
