package tool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
)

// listOf is the list of a network.
func (f *facts) listOf(network string) (list node.List) {
	if i := slices.IndexFunc(f.all, func(l node.List) bool { return l.Name == network }); i >= 0 {
		return f.all[i]
	}
	return list
}

// who names an attachment.
func who(a *node.Attachment) string {
	if a.Pod != "" {
		return fmt.Sprintf("pod %s on %q", a.Pod, a.Network)
	}
	return fmt.Sprintf("container %s on %q", shortID(a.ContainerID), a.Network)
}

// some are the first of many names, and how many more there are.
func some(names []string) string {
	if more := len(names) - 3; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), more)
	}
	return strings.Join(names, ", ")
}

// lostLeases are addresses of living containers that host-local would lend again.
func lostLeases(f *facts) (found []finding) {
	var lost []string
	for _, a := range f.attached {
		hasLocal := slices.Contains(typesOf(f.listOf(a.Network)), "host-local")
		if a.Orphan != "" || a.Cached == nil || !hasLocal || len(a.Held("address")) > 0 {
			continue
		}
		if addrs := a.Addresses(); len(addrs) > 0 {
			lost = append(lost, strings.Join(addrs, " ")+" of "+who(a))
		}
	}
	if len(lost) > 0 {
		found = append(found, finding{"lost-lease", broken, "no lease keeps " + some(lost),
			"replace these containers: another one may get their address"})
	}
	return found
}

// orphans are what containers left that are gone.
func orphans(f *facts) (found []finding) {
	var leases, rest []string
	for _, a := range f.attached {
		switch addrs := a.Held("address"); {
		case a.Orphan == "":
		case len(addrs) > 0:
			leases = append(leases, firstWord(addrs[0])+" of "+who(a))
		default:
			for _, h := range a.Holdings {
				rest = append(rest, fmt.Sprintf("%s %s of %s", h.Kind, h.Value, who(a)))
			}
		}
	}
	advice := "hawser ls --orphans says why they are nobody's; hawser gc removes them"
	if len(leases) > 0 {
		found = append(found, finding{"orphan-lease", doubtful, "lent to containers that are gone: " + some(leases),
			advice})
	}
	if len(rest) > 0 {
		found = append(found, finding{"leftover", doubtful, "left by containers that are gone: " + some(rest), advice})
	}
	return found
}

// forwardingOff is found where containers are attached whose packets the host is to route: an ADD turns it on.
func forwardingOff(f *facts) (found []finding) {
	isOff := map[bool]string{}
	if path := "ipv4/ip_forward"; readSetting(path) == "0" {
		isOff[true] = path
	}
	if path := "ipv6/conf/all/forwarding"; readSetting(path) == "0" {
		isOff[false] = path
	}
	for _, a := range f.attached {
		if a.Orphan != "" || !isRouted(f.listOf(a.Network)) {
			continue
		}
		for _, text := range a.Addresses() {
			addr, _ := netip.ParseAddr(text)
			path := isOff[addr.Is4()]
			if path == "" || !addr.IsValid() {
				continue
			}
			name := "net." + strings.ReplaceAll(path, "/", ".")
			found = append(found, finding{"forwarding-off", broken,
				name + " is 0, and " + who(a) + " needs the host to route",
				"sysctl -w " + name + "=1, and take the 0 out of /etc/sysctl.d"})
			delete(isOff, addr.Is4())
		}
	}
	return found
}

// isRouted says whether packets of a list's containers are to pass the host.
func isRouted(list node.List) bool {
	return slices.ContainsFunc(list.Plugins, func(e node.Entry) bool {
		is := func(key string) bool { return string(e.Raw[key]) == "true" }
		return e.Type == "ptp" || e.Type == "portmap" || is("ipMasq") || is("isGateway") || is("isDefaultGateway")
	})
}
