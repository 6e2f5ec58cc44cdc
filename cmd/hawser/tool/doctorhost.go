package tool

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// describe names an attachment in findings.
func describe(a *node.Attachment) string {
	object := "container"
	if a.Pod != "" {
		object = "pod"
	}
	return fmt.Sprintf("%s %s on %q", object, nameOf(a.Pod, a.ContainerID), a.Network)
}

// summarize returns the first three names and the number of the others.
func summarize(names []string) string {
	if more := len(names) - 3; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), more)
	}
	return strings.Join(names, ", ")
}

// lostLeases finds addresses of live containers that host-local would lease again, because no lease exists or dataDir
// was changed, or that the DHCP daemon does not renew.
func lostLeases(f *facts) {
	if f.isUnread {
		return
	}
	ctx, cancel := context.WithTimeout(f.ctx, 10*time.Second) // the daemon may hang
	defer cancel()
	var lost, elsewhere []string
	for _, a := range f.attachments {
		if a.Orphan != "" || a.File == "" || !f.isSelected(a) {
			continue
		}
		if addrs := a.Held(cni.HeldAddress); len(addrs) > 0 {
			if dir := node.FindList(f.lists, a.Network).LeaseDir(); dir != "" && isLeasedElsewhere(a, dir) {
				elsewhere = append(elsewhere, node.FirstWord(addrs[0])+" of "+describe(a))
			}
			continue
		}
		list := node.FindList(f.allLists, a.Network)
		if !uses(list, "host-local") && !f.isUnknownToDHCP(ctx, list, a) {
			continue
		}
		sets := list.RangeSets() // empty if the runtime sends the ranges
		isElsewhere := func(addr netip.Addr) bool {
			contains := func(r ranges.Range) bool { return r.Contains(addr) }
			return len(sets) > 0 && !slices.ContainsFunc(slices.Concat(sets...), contains)
		}
		if addrs := slices.DeleteFunc(a.Addrs(), isElsewhere); len(addrs) > 0 {
			lost = append(lost, ranges.Join(addrs, " ")+" of "+describe(a))
		}
	}
	f.addAll("lost-lease", "no lease exists for %s", lost)
	f.addAll("lost-lease", "no lease exists in the list's dataDir, only in another one, for %s", elsewhere)
}

// isLeasedElsewhere reports whether all leases of the attachment are host-local's and none is in dir.
func isLeasedElsewhere(a *node.Attachment, dir string) bool {
	return !slices.ContainsFunc(a.Holdings, func(h cni.Holding) bool {
		return h.Kind == cni.HeldAddress && (h.Plugin != "host-local" || filepath.Dir(h.Kept) == dir)
	})
}

// isUnknownToDHCP reports whether the DHCP daemon has no lease of the attachment. The reference plugin's daemon cannot
// be asked.
func (f *facts) isUnknownToDHCP(ctx context.Context, list node.List, a *node.Attachment) bool {
	i := slices.IndexFunc(list.Plugins, func(e node.Entry) bool { return e.HasIPAM("dhcp") })
	if i < 0 || !a.IsLive() || !f.HasPlugin(list.Plugins[i].IPAM.Type) {
		return false
	}
	single := only(list, list.Plugins[i].IPAM.Type, i)
	return node.IsDrift(f.Check(ctx, node.Call{Command: "CHECK", Attachment: a, List: single}))
}

// orphans finds holdings of containers that no longer exist.
func orphans(f *facts) {
	if f.isUnread {
		return
	}
	var leases, others, unowned []string
	for _, a := range f.attachments {
		switch addrs := a.Held(cni.HeldAddress); {
		case a.Orphan == "":
		case a.ContainerID == "":
			for _, h := range a.Holdings {
				unowned = append(unowned, h.Kept)
			}
		case len(addrs) > 0:
			leases = append(leases, node.FirstWord(addrs[0])+" of "+describe(a))
		default:
			for _, h := range a.Holdings {
				others = append(others, fmt.Sprintf("%s %s of %s", h.Kind, h.Value, describe(a)))
			}
		}
	}
	f.addAll("orphan-lease", "leased to containers that no longer exist: %s", leases)
	if len(unowned) > 0 {
		f.add("orphan-lease", "lease files without a container, whose addresses the reference's host-local never "+
			"leases again: %s", summarize(unowned)).Advice = fmt.Sprintf("while no container starts, run: "+
			"find %s -name '*[.:]*' -empty -delete", filepath.Dir(unowned[0]))
	}
	f.addAll("leftover", "left by containers that no longer exist: %s", others)
}

// forwardingOff finds disabled forwarding while containers need the host to route. ADD enables it.
func forwardingOff(f *facts) {
	disabled, seen := notForwarded(), map[string]bool{}
	isOff := disabled[true] != "" // for all interfaces: ip_forward sets their forwarding too
	for _, a := range f.attachments {
		list := node.FindList(f.allLists, a.Network)
		if a.Orphan != "" || !isRouted(list) {
			continue
		}
		bridge, _ := ownBridge(list)
		link := cmp.Or(bridge, node.FirstWord(a.HostEnd()))
		path := "ipv4/conf/" + link + "/forwarding"
		if !isOff && !seen[link] && readSetting(path) == "0" {
			key := sysctlName(path)
			f.add("forwarding-off", "%s is 0, and %s needs the host to route", key, describe(a)).advise(key)
		}
		seen[link] = true
		for _, addr := range a.Addrs() {
			if key := disabled[addr.Is4()]; key != "" {
				f.add("forwarding-off", "%s is 0, and %s needs the host to route", key, describe(a)).advise(key)
				delete(disabled, addr.Is4())
			}
		}
	}
}

// notForwarded returns the sysctls that disable routing on the host. The key is true for IPv4 and false for IPv6.
func notForwarded() map[bool]string {
	disabled := map[bool]string{}
	for is4, path := range map[bool]string{true: "ipv4/ip_forward", false: "ipv6/conf/all/forwarding"} {
		if readSetting(path) == "0" {
			disabled[is4] = sysctlName(path)
		}
	}
	return disabled
}

// isRouted reports whether the host routes packets of a list's containers.
func isRouted(list node.List) bool {
	return slices.ContainsFunc(list.Plugins, func(e node.Entry) bool {
		isTrue := func(key string) bool { return string(e.Raw[key]) == "true" }
		isOneFamily := slices.Contains([]string{`"v4"`, `"v6"`}, string(e.Raw["ipMasq"]))
		isGateway := isTrue("ipMasq") || isOneFamily || isTrue("isGateway") || isTrue("isDefaultGateway")
		return e.SubnetFile != "" || e.Is("ptp") || e.Is("bridge") && isGateway
	})
}

// missingModules finds kernel modules that plugins need and the kernel neither has nor can load. It finds nothing if
// the kernel's list of modules does not exist.
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
	for _, list := range f.allLists {
		for _, plugin := range typesOf(list) {
			p, _ := f.Plugin(plugin)
			for _, module := range modulesOf(cmp.Or(p.Name, plugin), f.programs[plugin].kind) {
				isLoaded := strings.Contains("\n"+string(loaded), "\n"+module+" ")
				if isLoaded || seen[module] || strings.Contains(files, "/"+module+".ko") {
					continue
				}
				seen[module] = true
				f.add("missing-module", "%s: plugin %q needs the kernel module %s, which is neither loaded nor in %s",
					titleOf(list), plugin, module, dir)
			}
		}
	}
}

func modulesOf(plugin string, origin kind) []string {
	switch {
	case origin == ours && plugin == "portmap":
		return []string{"nf_tables", "nft_fib"}
	case origin == ours && plugin == "firewall":
		return []string{"nf_tables"}
	}
	return map[string][]string{"bridge": {"bridge", "veth"}, "ptp": {"veth"}, "macvlan": {"macvlan"},
		"vlan": {"8021q"}, "ipvlan": {"ipvlan"}, "vrf": {"vrf"}, "dummy": {"dummy"}, "tap": {"tun"},
		"tc-redirect-tap": {"tun", "sch_ingress", "cls_u32", "act_mirred"},
		"bandwidth":       {"ifb", "sch_tbf"}}[plugin]
}

// changedMACs finds gateways whose MAC address changed. A container that has the old one cached sends packets that
// nothing receives until it resolves the address again.
func changedMACs(f *facts) {
	links := map[string]rtnl.Link{}
	for _, l := range f.links {
		links[l.Name] = l
	}
	for _, a := range f.attachments {
		bridge, isGateway := ownBridge(node.FindList(f.allLists, a.Network))
		if !isGateway || a.Orphan != "" {
			continue
		}
		for _, i := range a.Result().Interfaces {
			mac := links[i.Name].MAC.String()
			isOther := i.Sandbox != "" || bridge != "" && i.Name != bridge
			if isOther || mac == "" || i.MAC == "" || strings.EqualFold(i.MAC, mac) {
				continue
			}
			if set, err := iface.IsMACSet(links[i.Name]); err == nil && !set { // the bridge has the address of a port
				continue
			}
			f.add("changed-mac", "%s has MAC address %s, but had %s when it became the gateway of %s",
				i.Name, mac, i.MAC, describe(a)).advise(i.Name, i.MAC)
			delete(links, i.Name)
		}
	}
}

// guards finds containers' links on which route_localnet is 1 and no rule protects the host's 127.0.0.0/8.
func guards(f *facts) {
	id := "unguarded-loopback"
	for plugin, p := range f.programs {
		if p.kind == ours && cni.IsPlugin(plugin, "portmap") {
			id = "missing-guard"
		}
	}
	var unguarded []string
	for _, l := range f.links {
		isBridge := func(list node.List) bool {
			bridge, _ := ownBridge(list)
			return bridge == l.Name
		}
		isOwn := isHostEnd(l) || slices.ContainsFunc(f.allLists, isBridge)
		isGuarded := slices.Contains(f.guardedLinks, l.Name)
		if isOwn && !isGuarded && readSetting("ipv4/conf/"+l.Name+"/route_localnet") == "1" {
			unguarded = append(unguarded, l.Name)
		}
	}
	if len(unguarded) > 0 && !f.noRules && !f.isLoopbackGuarded() {
		f.addAll(id, "route_localnet is 1, and no rule protects the host's loopback, on %s", unguarded)
	}
}

// maxChecks is the number of attachments that doctor checks. After them, it only checks the first attachment of each
// network that is still unchecked. That is sufficient, because a flush of rules affects all attachments alike.
const maxChecks = 300

// drifts runs CHECK for live containers. It reports the first drift of each network and plugin, and names the other
// containers.
func drifts(f *facts) {
	seen, checked := map[string]bool{}, 0
	first, others := map[string]*finding{}, map[string][]string{} // by network and plugin
	for _, a := range f.attachments {
		if !a.IsLive() || !f.isSelected(a) || checked >= maxChecks && seen[a.Network] {
			continue
		}
		calls, _ := f.Checks(a)
		for _, c := range calls {
			err := f.Verify(f.ctx, c)
			seen[a.Network] = true
			key := a.Network + " " + c.Plugin()
			switch {
			case !node.IsDrift(err):
			case first[key] != nil:
				others[key] = append(others[key], nameOf(a.Pod, a.ContainerID))
			default:
				first[key] = f.add("drift", "CHECK of %s: %s", describe(a), missing(c, err))
				first[key].Advice = driftAdvice(c.Attachment.Reference, c.Plugin())
			}
		}
		checked++
	}
	for key, names := range others {
		first[key].What += "; also of " + summarize(names)
	}
}

// missing describes the drift that CHECK found. For an attachment of the reference plugins it does not name objects
// that only Hawser's plugins create.
func missing(c node.Call, err error) string {
	text := firstLine(err.Error())
	switch {
	case c.Attachment.Reference && strings.Contains(text, fmt.Sprintf("%q", ownTable())):
		return c.Plugin() + ": its masquerade is missing"
	case c.Attachment.Reference && strings.Contains(text, "there is no record"):
		return c.Plugin() + ": its host ports are missing"
	}
	return text
}

// driftAdvice returns advice that depends on whether reapply can restore the plugin's objects: see node.Reapply.
func driftAdvice(isReference bool, plugin string) string {
	isPlugin := func(name string) bool { return cni.IsPlugin(plugin, name) }
	switch {
	case isReference:
		return "restart the container: hawser reapply cannot restore objects of the reference's " + plugin
	case slices.ContainsFunc([]string{"portmap", "firewall", "tuning", "bandwidth"}, isPlugin):
		return kindByID("drift").Advice
	}
	return "hawser reapply restores rules and forwarding; for a link, an address or a route, restart the container"
}

// otherSoftware finds lists that do not work well with firewalld or kube-proxy if these run on the node.
func otherSoftware(f *facts) {
	const services = "KUBE-SERVICES" // kube-proxy's chain, also with iptables-legacy
	hasServices := slices.ContainsFunc(f.chains, func(c nft.LiveChain) bool {
		return c.Name == services || c.Table.Name == "kube-proxy"
	}) || slices.ContainsFunc(f.baseChains, func(b *node.BaseChain) bool {
		return slices.ContainsFunc(b.Rules, func(r node.RuleSummary) bool { return r.Target == services })
	})
	hasIPVS := slices.ContainsFunc(f.links, func(l rtnl.Link) bool { return l.Name == "kube-ipvs0" })
	bridgeNF := readSetting("bridge/bridge-nf-call-iptables")
	for _, list := range f.lists {
		isRejected := func(b *node.BaseChain) bool { // if false, an administrator has put the containers into a zone
			return isFirewalld(b) && slices.ContainsFunc(f.packets(b, list), func(p *node.Packet) bool {
				return b.Decide(p).Drops
			})
		}
		if !uses(list, "firewall") && slices.ContainsFunc(f.baseChains, isRejected) {
			f.add("firewalld", "%s: firewalld runs, and the list has no plugin firewall, which would put the "+
				"containers into its trusted zone", titleOf(list))
		}
		if hasServices && uses(list, "bridge") && bridgeNF != "1" {
			f.add("bridge-nf", "%s: packets between containers of the bridge bypass kube-proxy, so connections to "+
				"services with pods on this node hang: net.bridge.bridge-nf-call-iptables is %q", titleOf(list),
				bridgeNF)
		}
		for _, e := range list.Plugins {
			if hasIPVS && e.Is("portmap") && string(e.Raw["backend"]) == `"nftables"` {
				f.add("ipvs", "%s: with kube-proxy's ipvs, host ports of portmap's nftables backend take precedence "+
					"over services of the same port", titleOf(list))
			}
		}
	}
}

// mixedPlugins finds plugins of several projects or versions. If all have the same origin, it calls notReplaced.
func mixedPlugins(f *facts) {
	origins := map[string][]string{}
	for _, plugin := range slices.Sorted(maps.Keys(f.programs)) {
		installed := f.programs[plugin]
		p, isKnown := skel.FindProgram(f.Programs, plugin)
		// A name that only ends in the plugin's name may be another project's plugin (accelerated-bridge).
		isOther := !isKnown || plugin != p.Name && installed.kind.isForeign() && installed.kind != reference
		if installed.err == nil && installed.info != nil && !isOther {
			origins[installed.String()] = append(origins[installed.String()], plugin)
		}
	}
	if len(origins) < 2 {
		notReplaced(f)
		return
	}
	var texts []string
	var option string
	var replaced program // the first one that is not Hawser's, or the first one if all are
	for _, origin := range slices.Sorted(maps.Keys(origins)) {
		texts = append(texts, strings.Join(origins[origin], ", ")+": "+origin)
		for _, plugin := range origins[origin] {
			p := f.programs[plugin]
			if replaced.path == "" || replaced.kind == ours && p.kind != ours {
				replaced = p
			}
			if p.kind == foreign {
				option = " --force"
			}
		}
	}
	f.add("mixed-plugins", "the plugins have several origins: %s", strings.Join(texts, "; ")).
		advise(option, filepath.Dir(replaced.path))
}

// notReplaced adds a finding if lists use plugins of the reference although Hawser is installed on the node.
func notReplaced(f *facts) {
	dir := installedDir(f.Node)
	var names, others []string
	var version string
	for _, name := range slices.Sorted(maps.Keys(f.programs)) {
		isNamed := slices.ContainsFunc(f.Programs, func(p skel.Program) bool { return p.Name == name })
		switch p := f.programs[name]; {
		case p.err == nil && p.kind == reference:
			names, version = append(names, name), p.String()
		case p.err == nil && p.kind == foreign && isNamed:
			others = append(others, name)
		}
	}
	if names != nil && dir != "" {
		f.add("not-replaced", "Hawser is installed in %s, but lists use the reference's %s (%s)", dir,
			strings.Join(names, ", "), version).advise("", dir)
	}
	if others != nil && dir != "" {
		f.add("not-replaced", "Hawser is installed in %s, but %s are other programs", dir,
			strings.Join(others, ", ")).advise(" --force", dir)
	}
}

// replaceAdvice returns advice for other programs in the place of Hawser's plugins. option is empty or an option of
// hawser install.
func replaceAdvice(option, dir string) string {
	return fmt.Sprintf(kindByID("not-replaced").Advice, option, dir)
}

// installedDir returns the first directory of the node's plugin path that contains Hawser's tool, or "".
func installedDir(n *node.Node) string {
	for _, dir := range filepath.SplitList(n.Path) {
		if dir != "" && n.IsOurs(filepath.Join(dir, toolName)) {
			return dir
		}
	}
	return ""
}
