package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// explanation contains all known facts about a container, address, host port or interface.
type explanation struct {
	What        string             `json:"what"`
	Attachments []*node.Attachment `json:"attachments"`
	Links       []hostLink         `json:"links,omitempty"` // the host's interfaces that the attachments need
	Path        []*node.BaseChain  `json:"way,omitempty"`   // the chains of the packet path; nil = not searched
	Stops       []*stop            `json:"stops,omitempty"`
	isPort      bool               // the attachments were found by a host port
}

// stop is an obstacle on the packet path.
type stop struct {
	Verdict string `json:"verdict"` // node.StopsIt or node.MayStopIt
	Why     string `json:"why"`
}

type hostLink struct {
	Name   string   `json:"name"`
	Kind   string   `json:"kind,omitempty"`
	Master string   `json:"master,omitempty"`
	State  string   `json:"state"` // "up", "down", or "missing"
	Addrs  []string `json:"addresses,omitempty"`

	link rtnl.Link // zero if it is missing
}

func (l hostLink) String() string {
	return joinColumns(l.Name, l.Kind, l.State, strings.Join(l.Addrs, " "))
}

func explainCommand(s *session) *cobra.Command {
	const short = "Show all facts about a container, address, port or interface, and what may stop its packets"
	return s.command("explain [ID|ADDRESS|PORT|INTERFACE]", short, func(what string) error {
		links, linkErr := hostLinks()
		all, err := s.Attachments(s.ctx)
		all = slices.DeleteFunc(all, (*node.Attachment).IsLoopback)
		err = errors.Join(linkErr, err)
		if what == "" {
			lists, _ := s.Lists() // Attachments returns its errors
			networks := tree(lists, all, links)
			return errors.Join(s.show(networks, func(t table) { printTree(t, networks) }), err)
		}
		e, pathErr := s.explain(what, all, links)
		if err = errors.Join(pathErr, err); e == nil {
			return err
		}
		return errors.Join(s.show(e, e.print), err)
	})
}

// hostLinks returns the interfaces of the host by name, with the addresses of bridges, masters and interfaces that are
// not pair ends.
func hostLinks() (map[string]hostLink, error) {
	host := rtnl.Host()
	defer host.Close()
	links, err := host.Links()
	names, masters := map[int]string{}, map[int]bool{}
	for _, l := range links {
		names[l.Index] = l.Name
		masters[l.Master] = true
	}
	all, errs := map[string]hostLink{}, []error{err}
	for _, l := range links {
		h := hostLink{Name: l.Name, Kind: l.Kind, Master: names[l.Master], State: "down", link: l}
		if l.Up {
			h.State = "up"
		}
		if l.Kind == "bridge" || masters[l.Index] || !l.IsPairEnd() {
			addrs, err := host.Addrs(l.Index)
			errs = append(errs, err)
			for _, a := range addrs {
				if !a.Prefix.Addr().IsLinkLocalUnicast() {
					h.Addrs = append(h.Addrs, a.Prefix.String())
				}
			}
		}
		all[l.Name] = h
	}
	return all, errors.Join(errs...)
}

// parent returns the host's interface to which the attachment belongs: its bridge, its master, or its device.
func parent(a *node.Attachment, links map[string]hostLink) string {
	words := strings.Fields(a.HostEnd())
	if len(words) > 0 {
		if master := links[words[0]].Master; master != "" || len(words) < 3 {
			return master
		}
		return words[2] // the recorded master: veth0 master cni0
	}
	for _, value := range a.Held(cni.HeldLink) {
		if _, master, ok := strings.Cut(node.FirstWord(value), "@"); ok {
			return master
		}
	}
	return node.FirstWord(strings.Join(a.Held(cni.HeldDevice), " "))
}

// explain returns the facts about the object that what names: an address, a host port, an interface of the host, a pod
// or a container.
func (s *session) explain(what string, all []*node.Attachment, links map[string]hostLink) (e *explanation, err error) {
	e = &explanation{What: what}
	addr, addrErr := netip.ParseAddr(what)
	interpretations := []func(a *node.Attachment) bool{
		func(a *node.Attachment) bool { return addrErr == nil && slices.Contains(a.Addresses(), addr.String()) },
		func(a *node.Attachment) bool {
			return slices.ContainsFunc(a.Ports(), func(value string) bool { return isPort(value, what) })
		},
		func(a *node.Attachment) bool { return node.FirstWord(a.HostEnd()) == what || parent(a, links) == what },
		func(a *node.Attachment) bool { return node.Matches(what, a.Pod, a.ContainerID) },
	}
	for i, matches := range interpretations {
		for _, a := range all {
			if matches(a) {
				e.Attachments = append(e.Attachments, a)
			}
		}
		if len(e.Attachments) == 0 {
			continue
		}
		e.isPort = i == 1 // the second interpretation
		e.findLinks(links)
		if slices.ContainsFunc(e.Links, func(l hostLink) bool { return l.Name == what }) {
			return e, nil // an interface has no single packet path
		}
		return e, e.findPath(s.ctx, s.Node, links)
	}
	if l, ok := links[what]; ok {
		e.Links = []hostLink{l}
		return e, nil
	}
	return nil, fmt.Errorf("no attachment or interface is called %q; give the ID, pod or address of a container, a "+
		"host port (8080, 8080/udp, 10.0.0.1:8080) or an interface of the host", what)
}

// isPort reports whether what names the host port in the value of a holding ("0.0.0.0:8080/tcp to ...").
func isPort(value, what string) bool {
	held, heldProto, _ := strings.Cut(node.FirstWord(value), "/")
	wanted, proto, hasProto := strings.Cut(what, "/")
	have, err := netip.ParseAddrPort(held)
	want, wantErr := parseEndpoint(wanted)
	if err != nil || wantErr != nil || hasProto && proto != heldProto || want.port != have.Port() {
		return false
	}
	return !want.addr.IsValid() || have.Addr() == want.addr ||
		have.Addr().IsUnspecified() && have.Addr().Is4() == want.addr.Is4()
}

func (e *explanation) addStop(verdict, format string, args ...any) {
	e.Stops = append(e.Stops, &stop{verdict, fmt.Sprintf(format, args...)})
}

// linkByName returns the link with a name. Its state is "missing" if the host does not have it.
func linkByName(links map[string]hostLink, name string) hostLink {
	if l, ok := links[name]; ok {
		return l
	}
	return hostLink{Name: name, State: "missing"}
}

// findLinks adds the host's interfaces that the attachments need.
func (e *explanation) findLinks(links map[string]hostLink) {
	seen := map[string]bool{"": true}
	for _, a := range e.Attachments {
		for _, name := range []string{node.FirstWord(a.HostEnd()), parent(a, links)} {
			_, isOnHost := links[name]
			if seen[name] || !isOnHost && len(a.Held(cni.HeldDevice)) > 0 { // the device is in the container
				continue
			}
			seen[name] = true
			e.Links = append(e.Links, linkByName(links, name))
		}
	}
}

func (e *explanation) findPath(ctx context.Context, n *node.Node, links map[string]hostLink) error {
	e.Path = []*node.BaseChain{}
	routed, errs := map[bool]bool{}, []error{} // true = IPv4
	var packets []*node.Packet
	for _, a := range e.Attachments {
		if a.Orphan != "" {
			e.addStop(node.StopsIt, "container %s: %s", nameOf("", a.ContainerID), a.Orphan)
		}
		if a.IsLive() {
			errs = append(errs, e.findDrift(ctx, n, a))
		}
		list, _ := listOf(n, a) // Attachments has returned its error
		list = list.ResolveFlannel(a.ContainerID)
		isForeign := len(list.Plugins) == 0 || !n.HasPlugin(list.Plugins[0].Type)
		if !isRouted(list) && !isForeign { // packets do not pass the host's chains
			continue
		}
		p := e.packetOf(a, list, links)
		for _, addr := range a.Addrs() {
			packet := p
			packet.Range = netip.PrefixFrom(addr, addr.BitLen())
			packets = append(packets, &packet)
			routed[addr.Is4()] = routed[addr.Is4()] || !isForeign
			// The routes of a link in a VRF are in another table. A link with a link-local IPv6 gateway needs no route.
			if own := p.Links; !isForeign && addr.Is4() && len(own) == 1 && links[own[0].Name].Master == "" {
				errs = append(errs, e.findRoute(addr, own[0]))
			}
		}
	}
	for _, l := range e.Links {
		if l.State != "up" && l.Kind != "" || l.State == "missing" {
			e.addStop(node.StopsIt, "interface %s is %s", l.Name, l.State)
		}
	}
	for isIPv4, key := range notForwarded() {
		isReported := slices.ContainsFunc(e.Stops, func(s *stop) bool { return strings.Contains(s.Why, key) })
		if routed[isIPv4] && !isReported {
			e.addStop(node.StopsIt, "%s is 0, so the host does not forward packets", key)
		}
	}
	chains, err := node.BaseChains(ctx)
	for _, b := range chains {
		e.addChain(b, packets)
	}
	slices.SortFunc(e.Stops, func(a, b *stop) int { // certain obstacles first
		return cmp.Or(strings.Compare(b.Verdict, a.Verdict), strings.Compare(a.Why, b.Why))
	})
	return errors.Join(append(errs, err)...)
}

// findRoute adds a stop if the host would send packets to addr elsewhere than to the containers' link.
func (e *explanation) findRoute(addr netip.Addr, own rtnl.Link) error {
	host := rtnl.Host()
	defer host.Close()
	by, err := host.RouteTo(addr)
	switch {
	case rtnl.IsUnreachable(err): // a rule of the routing policy may forbid only the host's own packets
		e.addStop(node.MayStopIt, "the host has no route to %s", addr)
	case err != nil:
		return err
	case by != own.Index:
		e.addStop(node.MayStopIt, "the host's route to %s does not lead to %s", addr, own.Name)
	}
	return nil
}

// packetOf returns the packets that an attachment sends, without addresses.
func (e *explanation) packetOf(a *node.Attachment, list node.List, links map[string]hostLink) node.Packet {
	name, _ := ownBridge(list)
	name = cmp.Or(name, parent(a, links), node.FirstWord(a.HostEnd()))
	var all []rtnl.Link
	for _, l := range links {
		all = append(all, l.link)
	}
	up, _ := uplink()
	p := newPacket(list, up, all, []string{name})
	if !a.Reference {
		p.Mark = acceptMark(list, e.Attachments)
	}
	return p
}

// addChain adds a chain that some of the packets pass, and the reason why it drops them. A new connection to a
// container is only considered if the query is a host port, or if a rule with conditions drops its packets.
func (e *explanation) addChain(b *node.BaseChain, packets []*node.Packet) {
	isPassed := false
	var verdict, why string
	for _, sent := range packets {
		if b.Family != nft.INet && b.Family != nft.FamilyOf(sent.Range.Addr()) {
			continue
		}
		isPassed = true
		answer, opening := *sent, *sent
		answer.ToContainer, answer.IsAnswer = true, true
		opening.ToContainer, opening.IsForwarded = true, e.isPort
		directions := []*node.Packet{sent}
		switch {
		case b.Hook == "prerouting": // before their destination is translated
		case e.isPort:
			directions = append(directions, &answer, &opening)
		default:
			directions = append(directions, &answer)
			if d := b.Decide(&opening); d.Drops && d.Rule != nil && !d.Rule.IsUnconditional() {
				verdict, why = node.MayStopIt, b.Explain(d)
			}
		}
		if found, reason := b.Obstacle(directions); found != "" && verdict != node.StopsIt {
			verdict, why = found, reason
		}
	}
	if isPassed {
		e.Path = append(e.Path, b)
	}
	if verdict != "" {
		e.addStop(verdict, "table %s, chain %s at %s: %s", b.Table, b.Name, b.Hook, why)
	}
}

func (e *explanation) findDrift(ctx context.Context, n *node.Node, a *node.Attachment) error {
	calls, err := n.Checks(a)
	for _, c := range calls {
		switch failed := n.Verify(ctx, c); {
		case node.IsDrift(failed):
			verdict := node.MayStopIt
			if e.isNeeded(c, failed) {
				verdict = node.StopsIt
			}
			e.addStop(verdict, "%s", missing(c, failed))
		case failed != nil:
			err = errors.Join(err, failed)
		}
	}
	return err
}

// isNeeded reports whether all packets need the object of a drift. Only some packets need a masquerade, host ports of
// 127.0.0.1 with their guard, or an object of a chained plugin. All packets to a host port need the port itself.
func (e *explanation) isNeeded(c node.Call, drift error) bool {
	some := regexp.MustCompile(`masq|route_localnet|_guard_|_localnet_`)
	isNeeded := func(line string) bool { return !some.MatchString(line) }
	return (c.Entry == 0 || e.isPort && c.Is("portmap")) &&
		slices.ContainsFunc(strings.Split(drift.Error(), "\n"), isNeeded)
}

func (e *explanation) print(t table) {
	for _, a := range e.Attachments {
		t.row(cmp.Or(a.Pod, a.ContainerID))
		line := func(what, value, kept string) {
			if value != "" {
				t.row("  "+what, value, kept)
			}
		}
		line("container", a.ContainerID, "")
		line("network", a.Network, "")
		line("interface", a.IfName, a.Netns)
		line("since", formatTime(a.Since), "")
		line("orphan", a.Orphan, "")
		if a.File != "" {
			line("result", strings.Join(a.Addresses(), " "), a.File)
		}
		for _, h := range a.Holdings {
			line(string(h.Kind), h.Value, h.Plugin+": "+h.Kept)
		}
	}
	for _, l := range e.Links {
		t.row(l.String())
	}
	if e.Path == nil {
		return
	}
	t.row("packet path")
	if len(e.Path) == 0 {
		t.row("  no chain of nftables or iptables")
	}
	for _, b := range e.Path {
		t.row(fmt.Sprintf("  %s %d", b.Hook, b.Priority), fmt.Sprintf("table %s, chain %s", b.Table, b.Name),
			e.describeChain(b))
	}
	t.row("obstacles")
	for _, s := range e.Stops {
		t.line("  %s: %s", s.Verdict, s.Why)
	}
	if len(e.Stops) == 0 {
		t.row("  none found; whether a process listens in the container was not checked")
	}
}

func (e *explanation) describeChain(b *node.BaseChain) string {
	texts := []string{fmt.Sprintf("%s, %d rules", b.Type, b.Count), b.Comment}
	ours := map[string]cni.HoldingKind{"portmap_prerouting": cni.HeldPort, "masq": cni.HeldMasquerade,
		"firewall_forward": cni.HeldAccept}
	for name, kind := range ours {
		for _, a := range e.Attachments {
			if b.IsOurs() && strings.HasPrefix(b.Name, name) {
				texts = append(texts, a.Held(kind)...)
			}
		}
	}
	return joinNonempty("; ", texts...)
}

// network is a network of the node with its attachments, for the tree.
type network struct {
	Name    string   `json:"network"`
	File    string   `json:"file,omitempty"`
	Plugins []string `json:"plugins,omitempty"`
	Links   []branch `json:"links"`
}

// branch is an interface of the host with its attachments. Name is empty for attachments without one.
type branch struct {
	hostLink
	Attachments []*node.Attachment `json:"attachments"`
}

// tree groups the attachments by network and parent interface.
func tree(lists []node.List, all []*node.Attachment, links map[string]hostLink) (networks []*network) {
	find := func(name string) *network {
		i := slices.IndexFunc(networks, func(n *network) bool { return n.Name == name })
		if i < 0 {
			i, networks = len(networks), append(networks, &network{Name: name, Links: []branch{}})
		}
		return networks[i]
	}
	for _, l := range lists {
		n := find(l.Name)
		n.File = cmp.Or(n.File, l.File)
		for _, e := range l.Plugins {
			n.Plugins = append(n.Plugins, e.Type)
		}
	}
	for _, a := range all {
		n, name := find(a.Network), parent(a, links)
		i := slices.IndexFunc(n.Links, func(b branch) bool { return b.Name == name })
		if i < 0 {
			i, n.Links = len(n.Links), append(n.Links, branch{hostLink: linkByName(links, name)})
		}
		n.Links[i].Attachments = append(n.Links[i].Attachments, a)
	}
	return networks
}

func printTree(t table, networks []*network) {
	for _, n := range networks {
		t.row(joinColumns(cmp.Or(n.Name, "?"), strings.Join(n.Plugins, ", "), n.File))
		for i, b := range n.Links {
			indent := ""
			if b.Name != "" {
				t.row(branchPrefix(i, len(n.Links)) + b.String())
				indent = "│  "
				if i == len(n.Links)-1 {
					indent = "   "
				}
			}
			for k, a := range b.Attachments {
				t.row(indent + branchPrefix(k, len(b.Attachments)) + joinColumns(nameOf(a.Pod, a.ContainerID),
					cmp.Or(a.IfName, "?"), strings.Join(a.Addresses(), " "), node.FirstWord(a.HostEnd()),
					strings.Join(a.Held(cni.HeldPort), ", "), a.Orphan))
			}
		}
	}
}

func joinColumns(all ...string) string { return joinNonempty("  ", all...) }

func joinNonempty(separator string, all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(w string) bool { return w == "" }), separator)
}

func branchPrefix(i, n int) string {
	if i == n-1 {
		return "└─ "
	}
	return "├─ "
}
