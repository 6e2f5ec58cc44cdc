package conformance

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

func addInterfaceName(w *world) {
	for _, name := range []string{w.Subject.Options.IfName, "cnf7"} {
		a := w.newContainer()
		a.ifName = name
		w.add(a)
		w.expect(w.link(a, name) != nil, "ADD with CNI_IFNAME=%s did not create %s in the container", name, name)
		w.succeeds("DEL", a)
	}
}

// occupiedContainer creates a container in which an interface already has the name in CNI_IFNAME.
func (w *world) occupiedContainer() *attachment {
	w.detach(w.attach()) // ADD must not fail for another reason
	a := w.newContainer()
	w.ip(a.id, "link add "+a.ifName+" type veth peer name other0", "addr add 192.0.2.77/32 dev "+a.ifName,
		"link set "+a.ifName+" up")
	return a
}

func addExistingUnharmed(w *world) {
	a := w.occupiedContainer()
	state := func() snapshot { return w.netState(a.id).about(a.ifName, true) }
	w.unchanged(state, "ADD changed an interface that the container already had", func() { w.call("ADD", a) })
}

func addInterfacesListed(w *world) {
	first := w.attach() // so that objects that all attachments share exist
	if !w.Info.ManyAttachments {
		w.detach(first)
	}
	a := w.newContainer()
	place := map[bool]string{true: " in the container", false: " on the host"}
	links := func() (all []string) {
		for _, netns := range []string{a.id, ""} {
			for _, l := range w.listing(netns, "link") {
				all = append(all, text(l, "ifname")+place[netns != ""])
			}
		}
		return all
	}
	before := links()
	w.add(a)
	created := slices.DeleteFunc(links(), func(l string) bool { return slices.Contains(before, l) })
	w.need(len(created) > 0, "ADD created no interface")
	var listed []string
	for _, i := range list(a.result, "interfaces") {
		listed = append(listed, text(i, "name")+place[text(i, "sandbox") != ""])
	}
	for _, l := range created {
		w.expect(slices.Contains(listed, l), "ADD created %s, which is not in the result's interfaces", l)
	}
}

func addSandbox(w *world) {
	a := w.attach()
	own := slices.DeleteFunc(list(a.result, "interfaces"), func(i object) bool { return i["name"] != a.ifName })
	w.need(w.Spec >= "1.0.0" || len(own) > 0, "the result does not list "+a.ifName)
	isIn := func(i object) bool { return text(i, "sandbox") != "" && (w.Spec < "1.0.0" || i["sandbox"] == a.netns) }
	w.expect(slices.ContainsFunc(own, isIn), "the result's interfaces have no %s in sandbox %s", a.ifName, a.netns)
}

// reported returns the link of an interface of a result, or nil if it does not exist. known is false if the interface
// is in another container's sandbox.
func (w *world) reported(a *attachment, i object) (link object, known bool) {
	place := &attachment{}
	switch i["sandbox"] { // may have any type, for example a list, for which the lookup in a map would panic
	case nil, "":
	case a.netns:
		place = a
	default:
		return nil, false
	}
	return w.link(place, text(i, "name")), true
}

func addInterfacesExist(w *world) {
	a, checked := w.attach(), 0
	for _, i := range list(a.result, "interfaces") {
		l, known := w.reported(a, i)
		if !known {
			continue
		}
		checked++
		name, mac := text(i, "name"), text(i, "mac")
		w.expect(l != nil, "%s, which the result has with sandbox %q, does not exist", name, text(i, "sandbox"))
		const message = "the interface %s has the %s %v, but in the result it has %v"
		w.expect(mac == "" || strings.EqualFold(mac, text(l, "address")), message, name, "MAC", l["address"], mac)
		w.expect(i["mtu"] == nil || i["mtu"] == 0.0 || i["mtu"] == l["mtu"], message, name, "MTU", l["mtu"], i["mtu"])
	}
	w.need(checked > 0, "the result has no interface of the host or the container")
}

func addAddressesExist(w *world) {
	a, checked := w.attach(), 0
	interfaces := list(a.result, "interfaces")
	for _, ip := range list(a.result, "ips") {
		index, ok := ip["interface"].(float64)
		if !ok || index < 0 || index >= float64(len(interfaces)) { // the case add/format reports it
			continue
		}
		if l, known := w.reported(a, interfaces[int(index)]); known {
			checked++
			found := addresses(l)
			w.expect(slices.Contains(found, canonical(text(ip, "address"))), "the result has %v on %v, which has %v",
				ip["address"], interfaces[int(index)]["name"], found)
		}
	}
	w.need(checked > 0, "the result has no address of an interface of the host or the container")
}

func addAddressesListed(w *world) {
	a := w.attach()
	all := addresses(w.link(a, a.ifName))
	w.need(len(all) > 0, "the interface has no address")
	for _, addr := range all {
		isIt := func(ip object) bool { return canonical(text(ip, "address")) == addr }
		w.expect(slices.ContainsFunc(list(a.result, "ips"), isIt), "%s has %s, which the result lacks", a.ifName, addr)
	}
}

func addRoutesExist(w *world) {
	a := w.attach()
	routes := list(a.result, "routes")
	w.need(len(routes) > 0, "the result has no routes")
	for _, r := range routes {
		w.expect(w.hasRoute(a, r), "the result has a route to %v with gw %q, which the container lacks; its routes: %v",
			r["dst"], text(r, "gw"), w.netState(a.id).only("route"))
	}
}

// hasRoute reports whether a container has a route of a result.
func (w *world) hasRoute(a *attachment, r object) bool {
	want, err := netip.ParsePrefix(text(r, "dst"))
	w.noError(err)
	family := map[bool]string{true: "-4", false: "-6"}[want.Addr().Is4()]
	short := map[int]string{0: "default", want.Addr().BitLen(): want.Addr().String()}[want.Bits()] // as ip(8) prints it
	return slices.ContainsFunc(w.listing(a.id, family, "route", "show", "table", "all"), func(found object) bool {
		return found["dst"] == cmp.Or(short, want.Masked().String()) &&
			(text(r, "gw") == "" || slices.Contains(gateways(found), canonical(text(r, "gw"))))
	})
}

// droppedItems returns the items of the list at key that only former has. Items are compared by their key name.
func droppedItems(former, result object, key, name string) (missing []string) {
	for _, f := range list(former, key) {
		isSame := func(r object) bool { return canonical(text(r, name)) == canonical(text(f, name)) }
		if !slices.ContainsFunc(list(result, key), isSame) {
			missing = append(missing, fmt.Sprintf("%s: %v", key, f[name]))
		}
	}
	return missing
}

func addPrevResult(w *world) {
	a := w.attach()
	w.need(a.prev["interfaces"] != nil || a.prev["ips"] != nil, "prevResult has no interfaces or ips")
	a.prev["routes"] = slices.DeleteFunc(anyList(a.prev["routes"]), func(r any) bool { // the plugin removed it
		route, _ := r.(object)
		return !w.hasRoute(a, route)
	})
	missing := slices.Concat(droppedItems(a.prev, a.result, "interfaces", "name"),
		droppedItems(a.prev, a.result, "ips", "address"), droppedItems(a.prev, a.result, "routes", "dst"))
	w.expect(len(missing) == 0, "the result lacks items of prevResult: %v", missing)
	prev, _ := a.prev["dns"].(object)
	dns, _ := a.result["dns"].(object)
	w.expect(len(prev) == 0 || len(dns) > 0, "the result lacks the dns of prevResult")
}

func addIPAMAbbreviated(w *world) {
	a := w.attach()
	w.expect(a.result["interfaces"] == nil, "an IPAM plugin's result must not have interfaces")
	hasOne := func(ip object) bool { return ip["interface"] != nil }
	w.expect(!slices.ContainsFunc(list(a.result, "ips"), hasOne), "an IPAM plugin's ips must not have an interface")
}

func addTwoInterfaces(w *world) {
	w.needManyAttachments()
	a := w.attach()
	b := &attachment{id: a.id, ifName: "cnf7", netns: a.netns, plugin: a.plugin}
	w.add(b)
	w.expect(w.link(a, "cnf7") != nil, "the ADD of cnf7 did not create it")
	w.succeeds("DEL", b)
	w.expect(w.link(a, a.ifName) != nil, "DEL of cnf7 removed %s", a.ifName)
	w.succeeds("CHECK", a)
}

func addCapabilities(w *world) {
	args := capabilityArgs(w.Subject.Plugins[0])
	w.need(len(args) > 0, "the configuration declares no capability for which the suite has a value")
	a := w.attach(w.capabilities())
	w.noError(CheckResult(w.Spec, a.result))
	if mac := text(args, "mac"); mac != "" && w.Info.Kind&IPAM == 0 {
		got := text(w.link(a, a.ifName), "address")
		w.expect(got == mac, "the MAC address is %s, but runtimeConfig.mac is %s", got, mac)
	}
	w.succeeds("CHECK", a, w.capabilities())
	w.succeeds("DEL", a, w.capabilities())
}
