package tool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// notReady finds plugins whose STATUS fails, so that each ADD would fail. It runs Hawser's STATUS in this process. If
// the reference plugin is installed, it only reports failures that also concern that plugin: a kernel without the
// plugin's kind of interface, and a DHCP daemon that does not answer.
func notReady(f *facts) {
	seen := map[string]bool{}
	for _, list := range f.lists {
		for i, e := range list.Plugins {
			for _, plugin := range []string{e.Type, e.IPAM.Type} {
				installed := f.programs[plugin]
				isOther := installed.kind != ours && installed.kind != reference
				if !f.HasPlugin(plugin) || !f.HasPlugin(e.Type) || installed.err != nil || isOther {
					continue
				}
				isDHCP := cni.IsPlugin(plugin, "dhcp")
				err := f.Status(f.ctx, only(list, plugin, i))
				// The error concerns only Hawser's plugin, but the installed one is the reference's.
				isOnlyOurs := installed.kind != ours && !isDHCP && !strings.Contains(fmt.Sprint(err), missingKind)
				if err == nil || seen[err.Error()] || isPermission(err) || isOnlyOurs {
					continue
				}
				seen[err.Error()] = true
				item := f.add("not-ready", "%s: STATUS of %s", titleOf(list), firstLine(err.Error()))
				if isDHCP {
					item.Advice = "start the daemon: systemctl enable --now cni-dhcp.socket, or " + installed.path +
						" daemon"
				}
			}
		}
	}
}

// only returns a list of one plugin, a main or IPAM plugin of an entry of the list.
func only(list node.List, plugin string, entry int) node.List {
	single := node.Entry{Type: plugin, Raw: list.Plugins[entry].Raw}
	return node.List{Name: list.Name, CNIVersion: list.CNIVersion, Plugins: []node.Entry{single}}
}

// missingKind is the beginning of an error about a kind of interface that the kernel cannot create.
const missingKind = ": kind "

// isPermission reports whether an error may be due to the permissions of this process. The runtime may have more
// permissions.
func isPermission(err error) bool {
	return slices.ContainsFunc([]error{unix.EROFS, unix.EACCES, unix.EPERM}, func(e error) bool {
		return strings.Contains(err.Error(), e.Error())
	})
}

// ipv6Disabled finds lists with an IPv6 range whose gateway address the host cannot have because IPv6 is disabled.
func ipv6Disabled(f *facts) {
	for _, list := range f.lists {
		isIPv6 := func(r ranges.Range) bool { return r.Subnet.Addr().Is6() }
		name, hasGateway := ownBridge(list)
		isPtP := hasGateway && name == ""
		canEnable := isPtP && f.programs[list.Plugins[0].Type].kind == ours // Hawser's ptp enables IPv6 on the host end
		if !isRouted(list) || canEnable || !slices.ContainsFunc(slices.Concat(list.RangeSets()...), isIPv6) {
			continue
		}
		conf := "default" // a new interface gets this value
		if slices.ContainsFunc(f.links, func(l rtnl.Link) bool { return l.Name == name }) {
			conf = name
		}
		switch readSetting("ipv6/conf/" + conf + "/disable_ipv6") {
		case "0":
			continue
		case "":
			f.add("ipv6-disabled", "%s: it has an IPv6 range, but the kernel has no IPv6", titleOf(list)).Advice =
				"remove the IPv6 range, or boot without ipv6.disable=1"
			continue
		}
		var settings []string
		for _, scope := range slices.Compact([]string{"all", "default", conf}) {
			if readSetting("ipv6/conf/"+scope+"/disable_ipv6") == "1" {
				settings = append(settings, sysctlName("ipv6/conf/"+scope+"/disable_ipv6")+"=0")
			}
		}
		f.add("ipv6-disabled", "%s: it has an IPv6 range, but %s is 1", titleOf(list),
			sysctlName("ipv6/conf/"+conf+"/disable_ipv6")).advise(strings.Join(settings, " "))
	}
}

// vlanUplinks finds bridges that have uplinks, but no uplink with the VLAN of a list's ports.
func vlanUplinks(f *facts) {
	host := rtnl.Host()
	defer host.Close()
	for _, list := range f.lists {
		if bridge, _ := ownBridge(list); bridge == "" {
			continue
		}
		name, vlan := list.Bridge()
		i := slices.IndexFunc(f.links, func(l rtnl.Link) bool { return l.Name == name })
		if i < 0 {
			continue
		}
		// hasVLAN is also true if the containers need no uplink, or if a port's VLANs cannot be read.
		uplinks, hasVLAN := uplinksOf(f.links, f.links[i], int(vlan))
		for _, l := range f.links {
			isVM := l.Kind == "tun" && l.Master == f.links[i].Index
			if !hasVLAN && (isVM || slices.Contains(uplinks, l.Name)) {
				vlans, err := host.VLANs(l.Index)
				f.addError(err)
				hasVLAN = err != nil || slices.ContainsFunc(vlans, func(v rtnl.VLAN) bool { return v.ID == vlan })
			}
		}
		if uplinks != nil && !hasVLAN {
			f.add("vlan-uplink", "%s: no uplink of %s (%s) has VLAN %d, so containers reach only each other",
				titleOf(list), name, summarize(uplinks), vlan).advise(uplinks[0], vlan)
		}
	}
}

// uplinksOf returns the ports by which a bridge may reach other machines. It omits taps of virtual machines, dummies,
// and pair ends with a name that plugins choose, unless the other end is also a port on the host. needsNoUplink is true
// if the containers need none, because they have no VLAN or the host has an interface in it.
func uplinksOf(links []rtnl.Link, bridge rtnl.Link, vlan int) (uplinks []string, needsNoUplink bool) {
	needsNoUplink = vlan == 0
	for _, l := range links {
		isPort := func(end rtnl.Link) bool { return l.PeerNS == -1 && end.Index == l.Peer && end.Master != 0 }
		isContainerPort := isHostEnd(l) && !slices.ContainsFunc(links, isPort) || l.Kind == "tun" || l.Kind == "dummy"
		if l.Master == bridge.Index && !isContainerPort {
			uplinks = append(uplinks, l.Name)
		}
		needsNoUplink = needsNoUplink || l.Kind == "vlan" && l.Peer == bridge.Index && l.VLAN == vlan
	}
	return uplinks, needsNoUplink
}

// otherDefaults finds containers whose packets leave through a network other than eth0's, because the other network's
// default route has a lower metric.
func otherDefaults(f *facts) {
	for _, first := range f.attachments {
		var others []*node.Attachment
		for _, a := range f.attachments {
			if a != first && a.ContainerID == first.ContainerID && a.IsLive() && !a.IsLoopback() {
				others = append(others, a)
			}
		}
		if first.IfName != "eth0" || !first.IsLive() || !f.isSelected(first) || others == nil {
			continue
		}
		for _, is4 := range []bool{true, false} {
			link, err := defaultLink(first.Netns, is4)
			f.addError(err)
			k := slices.IndexFunc(others, func(a *node.Attachment) bool { return a.IfName == link })
			if k < 0 {
				continue
			}
			f.add("other-default-route", "the default route of %s points to %s of network %q, not to eth0",
				describe(first), link, others[k].Network).advise(others[k].Network)
		}
	}
}

// defaultLink returns the link of the default route with the lowest metric in a namespace. It returns "" if there are
// fewer than two default routes.
func defaultLink(path string, is4 bool) (string, error) {
	netns, err := ns.Open(path)
	if err != nil {
		return "", nil //nolint:nilerr // the container has ended
	}
	defer netns.Close()
	conn, err := rtnl.Dial(netns)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	copies, err := conn.RouteCopies()
	var routes []rtnl.Route
	for _, c := range copies {
		r := c.Route()
		isMain := r.Table == 0 || r.Table == unix.RT_TABLE_MAIN
		if r.Dst.Bits() == 0 && r.Dst.Addr().Is4() == is4 && isMain && r.Type <= unix.RTN_UNICAST {
			routes = append(routes, r)
		}
	}
	if err != nil || len(routes) < 2 {
		return "", err
	}
	best := slices.MinFunc(routes, func(a, b rtnl.Route) int { return cmp.Compare(a.Priority, b.Priority) })
	link, err := conn.LinkByIndex(best.OutIndex)
	return link.Name, err
}

// flushedFirewalld finds a running firewalld with the backend nftables whose rules another program has flushed.
// firewalld answers no request while it reloads its rules, so the rules are read again after its answers.
func flushedFirewalld(f *facts) {
	if f.noRules || slices.ContainsFunc(f.baseChains, isFirewalld) {
		return
	}
	ctx, cancel := context.WithTimeout(f.ctx, 3*time.Second)
	defer cancel()
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return // without a bus there is no firewalld
	}
	defer bus.Close()
	get := func(path dbus.ObjectPath, suffix, property string) any {
		var value dbus.Variant // stays empty if firewalld does not run
		_ = bus.Object(firewalldName, "/org/fedoraproject/FirewallD1"+path).CallWithContext(ctx,
			"org.freedesktop.DBus.Properties.Get", dbus.FlagNoAutoStart, firewalldName+suffix, property).Store(&value)
		return value.Value()
	}
	pid := uint32(0)
	_ = bus.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetConnectionUnixProcessID", 0,
		firewalldName).Store(&pid)
	isHere := sameFile(fmt.Sprintf("/proc/%d/ns/net", pid), "/proc/self/ns/net")
	if !isHere || get("", "", "state") != "RUNNING" || get("/config", ".config", "FirewallBackend") != "nftables" {
		return
	}
	if baseChains, err := node.BaseChains(f.ctx); err != nil || slices.ContainsFunc(baseChains, isFirewalld) {
		return
	}
	item := f.add("firewalld-flushed", "firewalld runs, but its rules are missing in nftables")
	if !slices.ContainsFunc(f.lists, func(l node.List) bool { return uses(l, "firewall") }) {
		item.Severity = doubtful
	}
}

// otherDirectories finds directories with lists that a runtime's configuration names, other than the one that doctor
// reads.
func otherDirectories(f *facts) {
	for _, dir := range node.ConfiguredLists() {
		if files, _ := node.ListFiles(dir); !sameFile(dir, f.ConfDir) && len(files) > 0 {
			f.add("other-directory", "a runtime is configured to read its lists from %s, but these findings are "+
				"about %s", dir, f.ConfDir).advise(dir)
		}
	}
}
