package tool

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// who names an attachment.
func who(a *node.Attachment) string {
	return fmt.Sprintf("%s %s on %q", map[bool]string{true: "pod", false: "container"}[a.Pod != ""],
		nameOf(a.Pod, a.ContainerID), a.Network)
}

// some are the first of many names, and how many more there are.
func some(names []string) string {
	if more := len(names) - 3; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), more)
	}
	return strings.Join(names, ", ")
}

// lostLeases are addresses of living containers that host-local would lend again.
func lostLeases(f *facts) {
	if f.isUnread {
		return
	}
	var lost []string
	for _, a := range f.attached {
		list := node.ListOf(f.all, a.Network)
		isOthers := a.Orphan != "" || a.File == "" || !f.isMeant(a) || !uses(list, "host-local")
		if isOthers || len(a.Held("address")) > 0 {
			continue
		}
		sets := list.RangeSets() // none where the runtime sends them
		isLent := func(text string) bool {
			addr, _ := netip.ParseAddr(text)
			return len(sets) == 0 || slices.ContainsFunc(slices.Concat(sets...), func(r ranges.Range) bool {
				return r.Contains(addr)
			})
		}
		if addrs := slices.DeleteFunc(a.Addresses(), func(t string) bool { return !isLent(t) }); len(addrs) > 0 {
			lost = append(lost, strings.Join(addrs, " ")+" of "+who(a))
		}
	}
	f.sayOf("lost-lease", "no lease keeps %s", lost)
}

// orphans are what containers left that are gone.
func orphans(f *facts) {
	if f.isUnread {
		return
	}
	var leases, rest, ofNobody []string
	for _, a := range f.attached {
		switch addrs := a.Held("address"); {
		case a.Orphan == "":
		case a.ContainerID == "":
			for _, h := range a.Holdings {
				ofNobody = append(ofNobody, h.Kept)
			}
		case len(addrs) > 0:
			leases = append(leases, node.FirstWord(addrs[0])+" of "+who(a))
		default:
			for _, h := range a.Holdings {
				rest = append(rest, fmt.Sprintf("%s %s of %s", h.Kind, h.Value, who(a)))
			}
		}
	}
	f.sayOf("orphan-lease", "lent to containers that are gone: %s", leases)
	if len(ofNobody) > 0 {
		f.say("orphan-lease", "these files name no container, and the reference's host-local lends none of them "+
			"again: %s", some(ofNobody)).Advice = fmt.Sprintf("remove them, while no container starts: "+
			"find %s -name '*[.:]*' -empty -delete", filepath.Dir(ofNobody[0]))
	}
	f.sayOf("leftover", "left by containers that are gone: %s", rest)
}

// forwardingOff is found where containers are attached whose packets the host is to route: an ADD turns it on.
func forwardingOff(f *facts) {
	isOff, seen := notForwarded(), map[string]bool{}
	for _, a := range f.attached {
		list := node.ListOf(f.all, a.Network)
		if a.Orphan != "" || !isRouted(list) {
			continue
		}
		own, _ := ownBridge(list)
		link := cmp.Or(own, node.FirstWord(a.HostEnd()))
		if isOff[true] == "" && !seen[link] && readSetting("ipv4/conf/"+link+"/forwarding") == "0" {
			f.say("forwarding-off", "net.ipv4.conf.%s.forwarding is 0, and %s needs the host to route", link, who(a))
		}
		seen[link] = true
		for _, text := range a.Addresses() {
			addr, _ := netip.ParseAddr(text)
			key := isOff[addr.Is4()]
			if key == "" || !addr.IsValid() {
				continue
			}
			f.say("forwarding-off", "%s is 0, and %s needs the host to route", key, who(a))
			delete(isOff, addr.Is4())
		}
	}
}

// notForwarded are the sysctls that keep the host from routing, of IPv4 (true) and of IPv6.
func notForwarded() map[bool]string {
	isOff := map[bool]string{}
	for is4, path := range map[bool]string{true: "ipv4/ip_forward", false: "ipv6/conf/all/forwarding"} {
		if readSetting(path) == "0" {
			isOff[is4] = "net." + strings.ReplaceAll(path, "/", ".")
		}
	}
	return isOff
}

// isRouted says whether packets of a list's containers are to pass the host.
func isRouted(list node.List) bool {
	return slices.ContainsFunc(list.Plugins, func(e node.Entry) bool {
		is := func(key string) bool { return string(e.Raw[key]) == "true" }
		isOfOne := slices.Contains([]string{`"v4"`, `"v6"`}, string(e.Raw["ipMasq"]))
		return e.SubnetFile != "" || e.Is("ptp") || e.Is("portmap") || is("ipMasq") || isOfOne ||
			is("isGateway") || is("isDefaultGateway")
	})
}

// missingModules are those of plugins that the kernel neither has nor can load. Where its list of modules is not there
// nothing is known.
func missingModules(f *facts) {
	var name unix.Utsname
	_ = unix.Uname(&name)
	dir := "/lib/modules/" + unix.ByteSliceToString(name.Release[:])
	loadable, err := os.ReadFile(dir + "/modules.dep")
	if err != nil {
		return
	}
	builtin, _ := os.ReadFile(dir + "/modules.builtin")
	loaded, _ := os.ReadFile("/proc/modules")
	files := "/" + strings.ReplaceAll(string(loadable)+string(builtin), "-", "_")
	seen := map[string]bool{}
	for _, list := range f.all {
		for _, plugin := range typesOf(list) {
			p, _ := f.Own(plugin)
			for _, module := range modulesOf(cmp.Or(p.Name, plugin), f.programs[plugin].kind) {
				isLoaded := strings.Contains("\n"+string(loaded), "\n"+module+" ")
				if isLoaded || seen[module] || strings.Contains(files, "/"+module+".ko") {
					continue
				}
				seen[module] = true
				f.say("missing-module", "%s: plugin %q needs the kernel module %s, which is neither loaded nor in %s",
					titleOf(list), plugin, module, dir)
			}
		}
	}
}

func modulesOf(plugin string, of kind) []string {
	switch {
	case of == ours && plugin == "portmap":
		return []string{"nf_tables", "nft_fib"}
	case of == ours && plugin == "firewall":
		return []string{"nf_tables"}
	}
	return map[string][]string{"bridge": {"bridge", "veth"}, "ptp": {"veth"}, "macvlan": {"macvlan"},
		"vlan": {"8021q"}, "ipvlan": {"ipvlan"}, "vrf": {"vrf"}, "dummy": {"dummy"}, "tap": {"tun"},
		"tc-redirect-tap": {"tun", "sch_ingress", "cls_u32", "act_mirred"},
		"bandwidth":       {"ifb", "sch_tbf"}}[plugin]
}

// changedMACs are those of gateways: a container that knows the old one sends into nothing until it asks again.
func changedMACs(f *facts) {
	links := map[string]rtnl.Link{}
	for _, l := range f.links {
		links[l.Name] = l
	}
	for _, a := range f.attached {
		own, isGateway := ownBridge(node.ListOf(f.all, a.Network))
		if !isGateway || a.Orphan != "" {
			continue
		}
		for _, i := range a.Result().Interfaces {
			now := links[i.Name].MAC.String()
			isOther := i.Sandbox != "" || own != "" && i.Name != own
			if isOther || now == "" || i.MAC == "" || strings.EqualFold(i.MAC, now) {
				continue
			}
			if set, err := iface.IsMACSet(links[i.Name]); err == nil && !set { // it follows its ports
				continue
			}
			f.say("changed-mac", "%s has the MAC address %s, and had %s when %s was attached, whose gateway it is",
				i.Name, now, i.MAC, who(a))
			delete(links, i.Name)
		}
	}
}

// guards are missing where packets for 127.0.0.0/8 are let in for containers.
func guards(f *facts) {
	id := "unguarded-loopback"
	for plugin, p := range f.programs {
		if p.kind == ours && (node.Entry{Type: plugin}).Is("portmap") {
			id = "missing-guard"
		}
	}
	var open []string
	for _, l := range f.links {
		isBridge := func(list node.List) bool {
			own, _ := ownBridge(list)
			return own == l.Name
		}
		isOwn := l.IsPairEnd() && strings.HasPrefix(l.Name, "veth") || slices.ContainsFunc(f.all, isBridge)
		if isOwn && !slices.Contains(f.guarded, l.Name) && readSetting("ipv4/conf/"+l.Name+"/route_localnet") == "1" {
			open = append(open, l.Name)
		}
	}
	if len(open) > 0 && !f.noRules && !f.dropsLoopback() {
		f.sayOf(id, "route_localnet is 1 and no rule guards the host's loopback on %s", open)
	}
}

// looksAtMost is how many attachments doctor looks at with CHECK, and one of each other network: who flushes rules
// flushes those of all.
const looksAtMost = 300

// drifted is what CHECK finds of living containers, for each plugin of a network of the first one.
func drifted(f *facts) {
	seen, looks := map[string]bool{}, 0
	first, others := map[string]*finding{}, map[string][]string{} // by network and plugin
	for _, a := range f.attached {
		if !a.IsLive() || !f.isMeant(a) || looks >= looksAtMost && seen[a.Network] {
			continue
		}
		calls, _ := f.Looks(a)
		for _, c := range calls {
			err := error(nil)
			if !c.List.NoCheck {
				err = f.Look(f.ctx, c)
				seen[a.Network] = true
			}
			key := a.Network + " " + c.Plugin()
			switch {
			case !node.IsDrift(err):
			case first[key] != nil:
				others[key] = append(others[key], nameOf(a.Pod, a.ContainerID))
			default:
				first[key] = f.say("drift", "CHECK of %s: %s", who(a), missing(c, err))
				first[key].Advice = driftAdvice(c)
			}
		}
		looks++
	}
	for key, names := range others {
		first[key].What += "; also of " + some(names)
	}
}

// missing is what CHECK misses. Of the reference's it names nothing that only ours make.
func missing(c node.Call, err error) string {
	text := gist(err.Error())
	switch {
	case c.Reference && strings.Contains(text, fmt.Sprintf("%q", ownTable())):
		return c.Plugin() + ": its masquerade is missing"
	case c.Reference && strings.Contains(text, "there is no record"):
		return c.Plugin() + ": its host ports are missing"
	}
	return text
}

// driftAdvice says what reapply can do: see node.Reapply.
func driftAdvice(c node.Call) string {
	switch {
	case c.Reference:
		return "restart the container: hawser reapply cannot restore what the reference's " + c.Plugin() + " makes"
	case c.Is("portmap", "firewall", "tuning", "bandwidth"):
		return kindNamed("drift").Advice
	}
	return "hawser reapply makes rules and forwarding again; for a link, an address or a route restart the container"
}

// beside is what other software on the node means for the lists.
func beside(f *facts) {
	has := func(is func(nft.LiveChain) bool) bool { return slices.ContainsFunc(f.chains, is) }
	hasFirewalld := has(isFirewalld)
	hasServices := has(func(c nft.LiveChain) bool { return c.Name == "KUBE-SERVICES" || c.Table.Name == "kube-proxy" })
	hasIPVS := slices.ContainsFunc(f.links, func(l rtnl.Link) bool { return l.Name == "kube-ipvs0" })
	bridged := readSetting("bridge/bridge-nf-call-iptables")
	for _, list := range f.lists {
		isInZone := slices.ContainsFunc(f.zones, f.namesOf(list)) // somebody put its bridge or its network there
		if hasFirewalld && isRouted(list) && !uses(list, "firewall") && !isInZone {
			f.say("firewalld", "%s: firewalld runs, and no plugin firewall tells it of the containers", titleOf(list))
		}
		if hasServices && uses(list, "bridge") && bridged != "1" {
			f.say("bridge-nf", "%s: kube-proxy does not see packets between containers of the bridge, so services "+
				"whose pods are on this node hang: net.bridge.bridge-nf-call-iptables is %q", titleOf(list), bridged)
		}
		for _, e := range list.Plugins {
			if hasIPVS && e.Is("portmap") && string(e.Raw["backend"]) == `"nftables"` {
				f.say("ipvs", "%s: portmap's nftables win over services of the same port beside the link kube-ipvs0",
					titleOf(list))
			}
		}
	}
}

// mixedPlugins are plugins of several origins or versions.
func mixedPlugins(f *facts) {
	origins := map[string][]string{}
	for _, p := range f.Programs {
		if installed := f.programs[p.Name]; installed.err == nil && installed.info != nil {
			origins[installed.String()] = append(origins[installed.String()], p.Name)
		}
	}
	if len(origins) < 2 {
		notReplaced(f)
		return
	}
	var texts []string
	for _, origin := range slices.Sorted(maps.Keys(origins)) {
		texts = append(texts, strings.Join(origins[origin], ", ")+": "+origin)
	}
	f.say("mixed-plugins", "plugins of one node have several origins: %s", strings.Join(texts, "; "))
}

// notReplaced adds a finding if lists use plugins of the reference although Hawser is installed on the node.
func notReplaced(f *facts) {
	dir := installedDir(f.Node)
	var names []string
	var version string
	for _, name := range slices.Sorted(maps.Keys(f.programs)) {
		if p := f.programs[name]; p.err == nil && p.kind == reference {
			names, version = append(names, name), p.String()
		}
	}
	if names != nil && dir != "" {
		f.say("not-replaced", "Hawser is installed in %s, but lists use the reference's %s (%s)", dir,
			strings.Join(names, ", "), version)
	}
}

// installedDir returns the first directory of the node's plugin path with the tool of Hawser, or "".
func installedDir(n node.Node) string {
	for _, dir := range filepath.SplitList(n.Path) {
		if dir != "" && n.IsOurs(filepath.Join(dir, toolName)) {
			return dir
		}
	}
	return ""
}
