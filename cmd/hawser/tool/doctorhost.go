package tool

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
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
	var lost []string
	for _, a := range f.attached {
		hasLocal := slices.Contains(typesOf(node.ListOf(f.all, a.Network)), "host-local")
		if a.Orphan != "" || a.File == "" || !hasLocal || len(a.Held("address")) > 0 {
			continue
		}
		if addrs := a.Addresses(); len(addrs) > 0 {
			lost = append(lost, strings.Join(addrs, " ")+" of "+who(a))
		}
	}
	f.sayOf("lost-lease", "no lease keeps %s", lost)
}

// orphans are what containers left that are gone.
func orphans(f *facts) {
	var leases, rest []string
	for _, a := range f.attached {
		switch addrs := a.Held("address"); {
		case a.Orphan == "":
		case len(addrs) > 0:
			leases = append(leases, node.FirstWord(addrs[0])+" of "+who(a))
		default:
			for _, h := range a.Holdings {
				rest = append(rest, fmt.Sprintf("%s %s of %s", h.Kind, h.Value, who(a)))
			}
		}
	}
	f.sayOf("orphan-lease", "lent to containers that are gone: %s", leases)
	f.sayOf("leftover", "left by containers that are gone: %s", rest)
}

// forwardingOff is found where containers are attached whose packets the host is to route: an ADD turns it on.
func forwardingOff(f *facts) {
	isOff := notForwarded()
	for _, a := range f.attached {
		if a.Orphan != "" || !isRouted(node.ListOf(f.all, a.Network)) {
			continue
		}
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
		return e.Type == "ptp" || e.Type == "portmap" || is("ipMasq") || isOfOne || is("isGateway") ||
			is("isDefaultGateway")
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
			for _, module := range modulesOf(plugin, f.programs[plugin].kind) {
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
	macs := map[string]string{}
	for _, l := range f.links {
		macs[l.Name] = l.MAC.String()
	}
	for _, a := range f.attached {
		own, isGateway := ownBridge(node.ListOf(f.all, a.Network))
		if !isGateway || a.Orphan != "" {
			continue
		}
		for _, i := range a.Result().Interfaces {
			now := macs[i.Name]
			isOther := i.Sandbox != "" || own != "" && i.Name != own
			if isOther || now == "" || i.MAC == "" || strings.EqualFold(i.MAC, now) || !wasMACSet(i.Name) {
				continue
			}
			f.say("changed-mac", "%s has the MAC address %s, and had %s when %s was attached, whose gateway it is",
				i.Name, now, i.MAC, who(a))
			delete(macs, i.Name)
		}
	}
}

// wasMACSet says whether somebody set the link's address. That of a bridge else follows its ports.
func wasMACSet(link string) bool {
	kind, err := os.ReadFile("/sys/class/net/" + link + "/addr_assign_type")
	return err != nil || strings.TrimSpace(string(kind)) == "3" // NET_ADDR_SET
}

// guards are missing where packets for 127.0.0.0/8 are let in for containers.
func guards(f *facts) {
	id := "unguarded-loopback"
	if f.programs["portmap"].kind == ours {
		id = "missing-guard"
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
	if len(open) > 0 && !f.dropsLoopback() {
		f.sayOf(id, "route_localnet is 1 and no rule guards the host's loopback on %s", open)
	}
}

// drifted is what CHECK finds of one container of each network: who flushes rules flushes those of all.
func drifted(f *facts) {
	seen := map[string]bool{}
	for _, a := range f.attached {
		if !a.IsLive() || seen[a.Network] {
			continue
		}
		found, _ := f.LookAll(f.ctx, a)
		seen[a.Network] = len(found) > 0
		for _, err := range found {
			if node.IsDrift(err) {
				f.say("drift", "CHECK of %s: %s", who(a), gist(err.Error()))
			}
		}
	}
}

// beside is what other software on the node means for the lists.
func beside(f *facts) {
	has := func(is func(nft.LiveChain) bool) bool { return slices.ContainsFunc(f.chains, is) }
	hasFirewalld := has(func(c nft.LiveChain) bool { return c.Table.Name == "firewalld" })
	hasServices := has(func(c nft.LiveChain) bool { return c.Name == "KUBE-SERVICES" || c.Table.Name == "kube-proxy" })
	hasIPVS := slices.ContainsFunc(f.links, func(l rtnl.Link) bool { return l.Name == "kube-ipvs0" })
	bridged := readSetting("bridge/bridge-nf-call-iptables")
	for _, list := range f.lists {
		types := typesOf(list)
		if hasFirewalld && isRouted(list) && !slices.Contains(types, "firewall") {
			f.say("firewalld", "%s: firewalld runs, and no plugin firewall tells it of the containers", titleOf(list))
		}
		if hasServices && slices.Contains(types, "bridge") && bridged != "1" {
			f.say("bridge-nf", "%s: kube-proxy does not see packets between containers of the bridge, so services "+
				"whose pods are on this node hang: net.bridge.bridge-nf-call-iptables is %q", titleOf(list), bridged)
		}
		for _, e := range list.Plugins {
			if hasIPVS && e.Type == "portmap" && string(e.Raw["backend"]) == `"nftables"` {
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
		return
	}
	var texts []string
	for _, origin := range slices.Sorted(maps.Keys(origins)) {
		texts = append(texts, strings.Join(origins[origin], ", ")+": "+origin)
	}
	f.say("mixed-plugins", "plugins of one node have several origins: %s", strings.Join(texts, "; "))
}

// acceptBit is the bit of the fwmark that the plugin firewall gives to what it accepts.
func (f *facts) acceptBit() string {
	bit := uint32(12)
	for _, list := range f.lists {
		for _, e := range list.Plugins {
			_ = json.Unmarshal(e.Raw["markAcceptBit"], &bit)
		}
	}
	return string(binary.NativeEndian.AppendUint32(nil, 1<<(bit&31)))
}

// dropPolicies are chains whose rules accept no container of a list. Of a family without a range they harm nobody.
func dropPolicies(f *facts) {
	for _, d := range f.drops {
		for _, list := range f.lists {
			all := slices.Concat(list.RangeSets()...)
			of := func(r ranges.Range) bool { return d.Family != nft.IPv6 || r.Subnet.Addr().Is6() }
			if !isRouted(list) || !slices.ContainsFunc(all, of) {
				continue
			}
			accepted, doubt := f.accepted(d, list, all)
			if accepted {
				continue
			}
			what := "no rule accepts"
			if doubt {
				what = "its rules do not accept; they accept some packets, and not for certain those"
			}
			chain := d.Table + " " + d.Name + " of nf_tables"
			if legacy, ok := strings.CutPrefix(d.Table, "legacy "); ok {
				chain = legacy + " " + d.Name + " of iptables-legacy"
			}
			f.say("drop-policy", "chain %s drops what %s of containers of %s", chain, what, titleOf(list))
			if doubt {
				f.found[len(f.found)-1].Severity = doubtful
			}
			break
		}
	}
}

// accepted follows the rules of a chain, and of those to which they lead: it is true for a rule that accepts the plugin
// firewall's packets, or names the list's bridge or a subnet of it. There is doubt where another rule accepts packets
// that need not be those of another interface.
func (f *facts) accepted(d node.BaseChain, list node.List, all ranges.Set) (accepted, doubt bool) {
	own, _ := ownBridge(list)
	names, bit := []string{own}, f.acceptBit()
	for _, r := range all {
		addr := string(r.Subnet.Addr().AsSlice())
		names = append(names, addr, addr[:(r.Subnet.Bits()+7)/8])
	}
	isOf := func(name string) bool { return name != "" && slices.Contains(names, name) }
	accepts := func(r node.Rule) bool {
		return r.Target == node.CNIForward || slices.Contains(r.About, bit) ||
			r.MayAccept && slices.ContainsFunc(r.About, isOf)
	}
	isOther := func(name string) bool {
		is := func(l rtnl.Link) bool { return l.Name == name && !l.IsPairEnd() }
		return name != own && slices.ContainsFunc(f.links, is)
	}
	chains := []string{d.Name}
	for i := 0; i < len(chains); i++ {
		for _, r := range d.Rules {
			if r.Chain != chains[i] || slices.ContainsFunc(r.About, isOther) {
				continue
			}
			if accepts(r) {
				return true, false
			}
			doubt = doubt || r.MayAccept
			if r.Target != "" && !slices.Contains(chains, r.Target) {
				chains = append(chains, r.Target)
			}
		}
	}
	return false, doubt
}

// dropsLoopback says whether a rule of somebody drops what comes for 127.0.0.0/8, as a kubelet's does.
func (f *facts) dropsLoopback() bool {
	nf := nft.New()
	defer nf.Close()
	seen := map[nft.Table]bool{}
	for _, c := range f.chains {
		if seen[c.Table] || !node.IsRouted(c.Table) || c.Table == ownTable() {
			continue
		}
		seen[c.Table] = true
		rules, err := nf.Rules(c.Table, "")
		f.note(err)
		isGuard := func(r nft.LiveRule) bool {
			return r.Drops() && (r.Mentions([]byte{127}) || r.Mentions([]byte{127, 0, 0, 0}))
		}
		if slices.ContainsFunc(rules, isGuard) {
			return true
		}
	}
	return false
}
