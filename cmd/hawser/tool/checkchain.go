package tool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// checkCombination finds keys and entries that are valid individually, but together make ADD fail or have no effect.
func (s location) checkCombination(list node.List) {
	if list.Raw["type"] == nil && list.Raw["capabilities"] != nil {
		s.report(broken, "capabilities", "is ignored here: runtimes read it from the entries of the plugins",
			"move it into the entry of the plugin that uses it")
	}
	for _, e := range list.Plugins {
		s.locate(e).checkAddresses(e)
	}
	seen, settings := map[string]int{}, map[string]string{}
	main := s.nameOf(list.Plugins[0])
	for i, e := range list.Plugins {
		name, loc := s.nameOf(e), s.locate(e)
		p, isOurs := s.node.Plugin(e.Type)
		first, isTwice := seen[name]
		switch {
		case name == "tuning":
			loc.checkTuning(e, settings)
			loc.checkTuningOrder(e, list.Plugins[:i])
		case isTwice && isOurs && p.Traits().Chained:
			loc.report(doubtful, "type", fmt.Sprintf("%s is also plugins[%d]; both change the same interface", e.Type,
				first), "merge the two entries")
		case name == "portmap" && (main == "macvlan" || main == "ipvlan") && !hasSibling(main, list.Plugins[0]):
			loc.report(doubtful, "type", fmt.Sprintf("host ports do not reach a %s, because the host cannot reach an "+
				"interface on its own %s", main, cmp.Or(rawText(list.Plugins[0].Raw["master"]), "uplink")),
				"remove portmap, or use bridge or ptp")
		}
		if !isTwice {
			seen[name] = i
		}
	}
}

// hasSibling reports whether the host has an interface of the kind on the master of an entry. The host reaches
// containers through it.
func hasSibling(kind string, e node.Entry) bool {
	host := rtnl.Host()
	defer host.Close()
	links, _ := host.Links() // without links the caller reports a warning, which is right on most hosts
	master := rawText(e.Raw["master"])
	return slices.ContainsFunc(links, func(l rtnl.Link) bool {
		isMaster := func(m rtnl.Link) bool { return m.Index == l.Peer && (m.Name == master || master == "") }
		// A negative PeerNS means that the master is in the host's namespace.
		return l.Kind == kind && l.PeerNS < 0 && slices.ContainsFunc(links, isMaster)
	})
}

// checkTuningOrder finds settings of a tuning entry that break earlier entries, which have used the former MAC address
// or MTU.
func (s location) checkTuningOrder(e node.Entry, earlier []node.Entry) {
	for _, other := range earlier {
		const drops = ", but macspoofchk of %s drops packets from any other than the first one"
		advice := `set the address with "capabilities": {"mac": true} of ` + other.Type
		name := s.nameOf(other)
		switch isLimited := name == "bridge" && string(other.Raw["macspoofchk"]) == "true"; {
		case isLimited && rawText(e.Raw["mac"]) != "":
			s.report(broken, "type", fmt.Sprintf("tuning changes the MAC address"+drops, other.Type), advice)
		case isLimited && e.Capabilities["mac"] && !other.Capabilities["mac"]:
			s.report(doubtful, "type", fmt.Sprintf("tuning sets the MAC address that a pod asks for"+drops, other.Type),
				advice)
		case name == "tc-redirect-tap" && e.Raw["mtu"] != nil:
			s.report(doubtful, "mtu", "is set after "+other.Type+" has copied the former MTU to the tap",
				"move tuning before "+other.Type)
		}
	}
}

// nameOf returns the name of Hawser's plugin for an entry's type, or the type if Hawser has no such plugin.
func (s location) nameOf(e node.Entry) string {
	if p, isOurs := s.node.Plugin(e.Type); isOurs {
		return p.Name
	}
	return e.Type
}

// rawText returns a string value; empty if the value has another type, which the plugin refuses.
func rawText(raw json.RawMessage) (value string) {
	_ = json.Unmarshal(raw, &value)
	return value
}

// checkTuning compares the settings of a tuning entry with the settings of earlier tuning entries.
func (s location) checkTuning(e node.Entry, earlier map[string]string) {
	var sysctls map[string]any
	_ = json.Unmarshal(e.Raw["sysctl"], &sysctls) // tuning refuses other types
	settings := map[string]string{}
	for key, value := range sysctls {
		settings[cni.KeyIn("sysctl", key)] = fmt.Sprint(value)
	}
	for _, key := range []string{"mac", "mtu", "promisc", "allmulti", "txQLen"} {
		if e.Raw[key] != nil {
			settings[key] = string(e.Raw[key])
		}
	}
	if mac, err := net.ParseMAC(rawText(e.Raw["mac"])); err == nil {
		settings["mac"] = mac.String()
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		value := settings[key]
		if other, ok := earlier[key]; ok && other != value {
			s.report(doubtful, key, fmt.Sprintf("is %s, but an earlier tuning sets it to %s", value, other),
				"remove one of them")
		}
		earlier[key] = value
	}
}

// checkAddresses finds keys of ipam that make each ADD fail or leave containers without an address.
func (s location) checkAddresses(e node.Entry) {
	ipam := map[string]json.RawMessage{}
	if json.Unmarshal(e.Raw["ipam"], &ipam) == nil && len(ipam) > 0 && e.IPAM.Type == "" && s.node.HasPlugin(e.Type) {
		s.report(broken, "ipam.type", "is missing, so containers get no address",
			`write the IPAM plugin, such as "host-local"`)
	}
	families := defaultFamilies(ipam["routes"])
	for i, set := range (node.List{Plugins: []node.Entry{e}}).RangeSets() {
		size := 0.0
		for _, r := range set {
			size += r.Size()
			isDefault := slices.ContainsFunc(families, func(is4 bool) bool { return is4 == r.Gateway.Is4() })
			// ptp adds a route to the gateway. A link-local gateway is reached through the interface itself.
			isReached := r.Subnet.Contains(r.Gateway) || r.Gateway.Is6() && r.Gateway.IsLinkLocalUnicast() ||
				s.nameOf(e) == "ptp"
			if isDefault && r.Gateway.IsValid() && !isReached {
				s.report(broken, r.Key+".gateway", fmt.Sprintf("%s is not in the subnet %s, so no default route can "+
					"go through it", r.Gateway, r.Subnet), "write a gateway in the subnet, or remove the default route")
			}
		}
		if len(set) > 0 && size == 0 {
			s.report(broken, set[0].Key, fmt.Sprintf("range set %d has no address except gateways, so ADD fails", i),
				"enlarge the range, or set another gateway")
		}
	}
}

// defaultFamilies returns the families of the default routes without a gateway of their own; true = IPv4.
func defaultFamilies(raw json.RawMessage) (families []bool) {
	var routes []struct{ Dst, GW string }
	_ = json.Unmarshal(raw, &routes) // plugins refuse other types
	for _, r := range routes {
		if dst, err := netip.ParsePrefix(r.Dst); err == nil && dst.Bits() == 0 && r.GW == "" {
			families = append(families, dst.Addr().Is4())
		}
	}
	return families
}

// checkType reports an entry without a valid type, and names a key that is probably a misspelled "type".
func (s location) checkType(e node.Entry) {
	for _, key := range slices.Sorted(maps.Keys(e.Raw)) {
		isOther := func(r rune) bool { return r < 'a' || r > 'z' }
		if e.Type == "" && key != "type" && strings.TrimFunc(strings.ToLower(key), isOther) == "type" {
			s.report(broken, "type", fmt.Sprintf("is missing, but there is a key %q", key), `did you mean "type"?`)
			return
		}
	}
	s.report(broken, "type", fmt.Sprintf("%q is not a valid plugin name", e.Type),
		"write the name of a plugin's program")
}
