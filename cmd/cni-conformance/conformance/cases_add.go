package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

func addOutput(w *world) {
	a := w.container("one")
	ans := w.call("ADD", a)
	w.expect(ans.exit == 0, "ADD failed: %v", ans)
	w.noError(Verdict("ADD", ans.exit, ans.stdout))
}

func addFormat(w *world) {
	w.noError(FormatError(w.Spec, w.attach("one").result))
}

func addInterfaceName(w *world) {
	if w.Info.Present {
		w.skip("the plugin does not create an interface")
	}
	for i, name := range []string{w.Subject.Options.IfName, "cnf7"} {
		a := w.container(fmt.Sprintf("c%d", i))
		a.ifName = name
		w.added(a)
		w.expect(slices.Contains(w.links(a), name), "after ADD with CNI_IFNAME=%s, the container's links are %v", name,
			w.links(a))
		w.succeeds("DEL", a)
	}
}

// occupied creates a container that has an interface of the requested name.
func (w *world) occupied() *attachment {
	if w.Info.Present {
		w.skip("the plugin does not create an interface")
	}
	a := w.container("one")
	w.ip(a.id, "link add "+a.ifName+" type veth peer name other0", "addr add 192.0.2.77/32 dev "+a.ifName,
		"link set "+a.ifName+" up")
	return a
}

func addExistingInterface(w *world) { w.fails("ADD", w.occupied()) }

func addExistingUnharmed(w *world) {
	a := w.occupied()
	before := w.netState(a.id)
	w.call("ADD", a)
	w.same(before, w.netState(a.id), "ADD changed the container's own interface")
}

func addInterfacesListed(w *world) {
	a := w.container("one")
	host, inside := w.links(nil), w.links(a)
	w.added(a)
	reported := func(name string, isInside bool) bool {
		return slices.ContainsFunc(list(a.result, "interfaces"), func(i object) bool {
			return text(i, "name") == name && (text(i, "sandbox") != "") == isInside
		})
	}
	for _, name := range w.links(a) {
		w.expect(slices.Contains(inside, name) || reported(name, true),
			"the result's interfaces lack %s, which ADD created in the container", name)
	}
	for _, name := range w.links(nil) {
		w.expect(slices.Contains(host, name) || reported(name, false),
			"the result's interfaces lack %s, which ADD created on the host", name)
	}
}

func addSandbox(w *world) {
	a := w.attach("one")
	for _, i := range list(a.result, "interfaces") {
		if text(i, "name") == a.ifName && text(i, "sandbox") != "" {
			w.expect(w.Spec < "1.0.0" || text(i, "sandbox") == a.netns, "sandbox of %s is %q, not %q", a.ifName,
				text(i, "sandbox"), a.netns)
			return
		}
	}
	w.fail("no interface %s with a sandbox in the result", a.ifName)
}

// place returns the container for an interface of a result, or nil for the host. Other places are unknown.
func (a *attachment) place(i object) (at *attachment, known bool) {
	switch text(i, "sandbox") {
	case "":
		return nil, true
	case a.netns:
		return a, true
	}
	return nil, false
}

func addInterfacesExist(w *world) {
	a := w.attach("one")
	for _, i := range list(a.result, "interfaces") {
		at, known := a.place(i)
		if !known {
			continue
		}
		l := w.link(at, text(i, "name"))
		w.expect(l != nil, "no interface %s, which the result has with sandbox %q", text(i, "name"), text(i, "sandbox"))
		mac := text(i, "mac")
		isRight := mac == "" || strings.EqualFold(mac, text(l, "address"))
		w.expect(isRight, "%v has the MAC address %v, and %s in the result", i["name"], l["address"], mac)
		isRight = i["mtu"] == nil || i["mtu"] == 0.0 || i["mtu"] == l["mtu"]
		w.expect(isRight, "the MTU of %s is %v, and %v in the result", text(i, "name"), l["mtu"], i["mtu"])
	}
}

func addAddressesExist(w *world) {
	a := w.attach("one")
	interfaces := list(a.result, "interfaces")
	for _, ip := range list(a.result, "ips") {
		index, ok := ip["interface"].(float64)
		if !ok || int(index) >= len(interfaces) {
			continue
		}
		at, known := a.place(interfaces[int(index)])
		name := text(interfaces[int(index)], "name")
		if known {
			found := w.addresses(at, name)
			isThere := slices.Contains(found, text(ip, "address"))
			w.expect(isThere, "%s has the addresses %v, and %v in the result", name, found, ip["address"])
		}
	}
}

// addresses returns the addresses of an interface, except link-local ones.
func (w *world) addresses(a *attachment, name string) (all []string) {
	for _, addr := range list(w.link(a, name), "addr_info") {
		if text(addr, "scope") != "link" {
			all = append(all, prefixOf(addr))
		}
	}
	return all
}

func addAddressesListed(w *world) {
	a := w.attach("one")
	for _, address := range w.addresses(a, a.ifName) {
		isListed := slices.ContainsFunc(list(a.result, "ips"), func(ip object) bool { return ip["address"] == address })
		w.expect(isListed, "%s has the address %s, which the result's ips lack", a.ifName, address)
	}
}

func addRoutesExist(w *world) {
	a := w.attach("one")
	for _, r := range list(a.result, "routes") {
		w.expect(w.hasRoute(a, r), "the container has no route to %s, which the result has; its routes: %v",
			text(r, "dst"), w.netState(a.id).only("route"))
	}
}

// hasRoute reports whether a container has a route with the destination and the gateway of a result's route.
func (w *world) hasRoute(a *attachment, r object) bool {
	want, err := netip.ParsePrefix(text(r, "dst"))
	if err != nil {
		return false
	}
	for _, found := range w.routes(a.id) {
		dst := text(found, "dst")
		switch {
		case dst == "default" && want.Bits() == 0:
			gw, _ := netip.ParseAddr(text(found, "gateway"))
			if gw.IsValid() && gw.Is4() != want.Addr().Is4() {
				continue
			}
		default:
			if !strings.Contains(dst, "/") {
				dst += map[bool]string{true: "/128", false: "/32"}[strings.Contains(dst, ":")]
			}
			if p, err := netip.ParsePrefix(dst); err != nil || p != want.Masked() {
				continue
			}
		}
		if gw := text(r, "gw"); gw == "" || gw == text(found, "gateway") {
			return true
		}
	}
	return false
}

// droppedItems returns the items of a list that former has and result does not have. Items are compared by name.
func droppedItems(former, result object, key, name string) (missing []string) {
	for _, f := range list(former, key) {
		if !slices.ContainsFunc(list(result, key), func(r object) bool { return r[name] == f[name] }) {
			missing = append(missing, fmt.Sprintf("%s: %v", key, f[name]))
		}
	}
	return missing
}

func addPrevResult(w *world) {
	a := w.attach("one")
	w.expect(a.result["cniVersion"] == w.Spec, "the result's cniVersion is %v", a.result["cniVersion"])
	missing := slices.Concat(droppedItems(a.prev, a.result, "interfaces", "name"),
		droppedItems(a.prev, a.result, "ips", "address"), droppedItems(a.prev, a.result, "routes", "dst"))
	w.expect(len(missing) == 0, "the result lacks what prevResult has: %v", missing)
	prev, _ := a.prev["dns"].(object)
	dns, _ := a.result["dns"].(object)
	w.expect(len(prev) == 0 || len(dns) > 0, "the result lacks the dns of prevResult")
}

func addIPAMAbbreviated(w *world) {
	a := w.attach("one")
	w.expect(a.result["interfaces"] == nil, "the result has interfaces")
	for _, ip := range list(a.result, "ips") {
		w.expect(ip["interface"] == nil, "the address %v has an interface", ip["address"])
	}
}

func addIPAMAddresses(w *world) {
	a := w.attach("one")
	w.expect(len(list(a.result, "ips")) > 0, "the result has no ips")
}

func addTwoInterfaces(w *world) {
	if !w.Info.Many || w.Info.Present {
		w.skip("the configuration allows one attachment at a time")
	}
	a := w.attach("one")
	b := &attachment{id: a.id, ifName: "cnf7", netns: a.netns, plugin: a.plugin}
	w.added(b)
	w.succeeds("DEL", b)
	left := w.links(a)
	w.expect(slices.Contains(left, a.ifName), "DEL of cnf7 removed %s", a.ifName)
	if w.Spec >= "0.4.0" {
		w.succeeds("CHECK", a)
	}
}

func addCapabilities(w *world) {
	args := capabilityArgs(w.Subject.Plugins[0])
	if len(args) == 0 {
		w.skip("the configuration declares no capability for which the suite has a value")
	}
	a := w.attach("one", w.capabilities())
	w.noError(FormatError(w.Spec, a.result))
	if mac := text(args, "mac"); mac != "" && w.Info.Kind&IPAM == 0 {
		got := text(w.link(a, a.ifName), "address")
		w.expect(got == mac, "the MAC address is %s, but runtimeConfig has %s", got, mac)
	}
	if w.Spec >= "0.4.0" {
		w.succeeds("CHECK", a, w.capabilities())
	}
	w.succeeds("DEL", a, w.capabilities())
}
