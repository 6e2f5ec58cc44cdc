package portmap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// referenceTable returns the table with the reference plugin's host ports. The comment of a rule there is the container
// ID; it does not name the network.
func referenceTable(f nft.Family) nft.Table { return nft.Table{Family: f, Name: "cni_hostport"} }

// isReference reports whether a rule of referenceTable is in one of the chains that have containers' rules.
func isReference(rule nft.LiveRule) bool {
	return slices.Contains([]string{"hostports", "hostip_hostports", "masquerading"}, rule.Chain)
}

// referenceSNATChain returns the chain in which older versions of the reference plugin masquerade for a container.
func referenceSNATChain(f nft.Family, r *record) ipt.Chain {
	return ipt.Chain{Family: f, Table: natTable, From: "CNI-HOSTPORT-SNAT",
		Name: ipt.ContainerChain("CNI-SN-", r.Network, r.ContainerID)}
}

// iptHostPort returns the host port that an iptables rule translates.
func iptHostPort(r ipt.Rule) (p hostPort, ok bool) {
	target, err := netip.ParseAddrPort(r.Option("--to-destination"))
	port, portErr := strconv.ParseUint(r.Option("--dport"), 10, 16)
	p = hostPort{Proto: protocol(r.Option("-p")), Port: uint16(port), Target: target}
	if err != nil || portErr != nil || p.Proto == 0 || r.Option("-j") != "DNAT" {
		return p, false
	}
	p.Addr = unspecified(nft.FamilyOf(target.Addr()))
	if d, err := netip.ParsePrefix(r.Option("-d")); err == nil {
		p.Addr = d.Addr()
	}
	return p, true
}

// isMentionedBy reports whether a rule contains an address of the record.
func (r *record) isMentionedBy(rule nft.LiveRule) bool {
	return slices.ContainsFunc(r.Addrs, func(a address) bool { return rule.Mentions(nft.AddrKey(a.Addr.Addr())) })
}

// resolveReferenceChains decides about the reference plugin's containers in iptables, whose chains have no record.
func (p *publication) resolveReferenceChains(ctx context.Context, hasRecord map[string]bool) error {
	var rules []ipt.Rule
	for _, a := range p.r.Addrs {
		found, err := natChain(a.family(), "").Rules(ctx, p.call.NF, func(chain string) bool {
			return strings.HasPrefix(chain, dnPrefix) && !hasRecord[chain]
		})
		if err := ipt.WarnIfMissing(p.call.Req.Warn, foreignRulesWarning, err); err != nil {
			return err
		}
		rules = append(rules, found...)
	}
	chainPorts := map[string][]hostPort{}
	for _, rule := range rules {
		if port, ok := iptHostPort(rule); ok {
			chainPorts[rule.Chain] = append(chainPorts[rule.Chain], port)
		}
	}
	allWanted := p.r.hostPorts()
	for _, entry := range rules {
		ports := chainPorts[entry.Option("-j")]
		delete(chainPorts, entry.Option("-j")) // several entries can jump to one chain
		if len(ports) == 0 {
			continue
		}
		wanted, _ := p.call.conflicts(allWanted, ports)
		if len(wanted) == 0 {
			continue
		}
		network, id, _ := ipt.ParseOwner(entry.Option("--comment"))
		// IPAM assigns an address only once, so another container with an address of the record no longer exists.
		isOwnAddr := func(port hostPort) bool {
			return slices.ContainsFunc(p.r.Addrs, func(a address) bool { return port.Target.Addr() == a.Addr.Addr() })
		}
		if !slices.ContainsFunc(ports, isOwnAddr) {
			return portConflict(wanted[0], fmt.Sprintf("by network %q, container %q, through the iptables rules of "+
				"other plugins (DEL or GC of that network removes them)", network, id))
		}
		p.staleOwners = append(p.staleOwners, &record{Addrs: p.r.Addrs,
			Attachment: cni.Attachment{Network: network, ContainerID: id}})
	}
	return nil
}

// resolveReferenceTables decides about the reference plugin's containers in nftables.
func (p *publication) resolveReferenceTables() error {
	for _, a := range p.r.Addrs {
		rules, err := p.call.NF.Rules(referenceTable(a.family()), "")
		if err != nil {
			return err
		}
		ports := p.r.addrPorts(a)
		for _, rule := range rules {
			port, ok := nftHostPort(a.family(), rule)
			wanted, _ := p.call.conflicts(ports, []hostPort{port})
			if !ok || len(wanted) == 0 {
				continue
			}
			if !p.r.isMentionedBy(rule) {
				return portConflict(wanted[0], fmt.Sprintf("by container %q, through the nftables rules of other"+
					" plugins (its DEL removes them)", rule.Comment))
			}
			p.staleOwners = append(p.staleOwners, &record{Addrs: p.r.Addrs,
				Attachment: cni.Attachment{ContainerID: rule.Comment}})
		}
	}
	return nil
}

// isChainRemoved reports whether the container's chain is missing although the shared chain exists. If both are
// missing, another program has flushed the table, and the attachment still owns the host ports.
func (c call) isChainRemoved(ctx context.Context, r *record) (bool, error) {
	for _, a := range r.chainAddrs() {
		own, err := c.variants(ctx, natChain(a.family(), r.chain()))
		if err != nil || len(own) > 0 {
			return false, err
		}
		shared, err := c.variants(ctx, natChain(a.family(), hostportDNAT))
		if err != nil || len(shared) == 0 {
			return false, err
		}
	}
	return len(r.chainAddrs()) > 0, nil
}

// verifyReference verifies that the reference plugin's rules exist on one of the backends, and route_localnet.
func (c call) verifyReference(ctx context.Context, want *record) error {
	exists, err := c.verifyReferenceTables(want)
	for _, a := range want.Addrs {
		variants, readErr := c.variants(ctx, natChain(a.family(), want.chain()))
		if readErr != nil {
			return readErr
		}
		if len(variants) > 0 {
			exists, err = true, c.verifyIPTables(ctx, want)
			break
		}
	}
	if !exists && (err == nil || cni.AsError(err).Code == cni.CodeDrift) {
		return cni.Drift("host ports: there is no record of this attachment (%s)", want.Attachment)
	}
	return errors.Join(err, c.verifyLocalnet(want.Localnet, false))
}

// verifyReferenceTables compares the reference plugin's rules in nftables for the container with the record. exists is
// true if the container has any such rules.
func (c call) verifyReferenceTables(r *record) (exists bool, err error) {
	var diffs []error
	for _, a := range r.publishedAddrs() {
		t := referenceTable(a.family())
		addDiff := func(format string, args ...any) {
			diffs = append(diffs, cni.Drift("nftables table %q: %s", t, fmt.Sprintf(format, args...)))
		}
		all, err := c.NF.Rules(t, "")
		if err != nil {
			return false, nft.IfSupported(err)
		}
		own := slices.DeleteFunc(slices.Clone(all), func(rule nft.LiveRule) bool {
			return rule.Comment != r.ContainerID || !isReference(rule)
		})
		exists = exists || len(own) > 0
		for _, p := range r.addrPorts(a) {
			isPortRule := func(rule nft.LiveRule) bool {
				port, ok := nftHostPort(a.family(), rule)
				return ok && port == p
			}
			if !slices.ContainsFunc(own, isPortRule) {
				addDiff("no rule of host port %s", p)
			}
		}
		for _, jump := range [][2]string{{"prerouting", "hostports_all"}, {"output", "hostports_all"},
			{"hostports_all", "hostports"}} {
			isJump := func(rule nft.LiveRule) bool { return rule.Chain == jump[0] && rule.Target == jump[1] }
			if !slices.ContainsFunc(all, isJump) {
				addDiff("no rule jumps from chain %q to chain %q", jump[0], jump[1])
			}
		}
		masqRules := slices.DeleteFunc(own, func(rule nft.LiveRule) bool {
			return rule.Chain != "masquerading" || !rule.Mentions(nft.AddrKey(a.Addr.Addr()))
		})
		if len(masqRules) < len(r.masqueradeMatches(a)) {
			addDiff("%d rules masquerade packets to %s", len(masqRules), a.Addr.Addr())
		}
	}
	return exists, errors.Join(diffs...)
}

// delReference removes the rules that the reference plugin added in nftables for the record's container. If the record
// has no addresses, it removes all rules for the container ID.
func (c call) delReference(ctx context.Context, r *record) error {
	isOwn := func(rule nft.LiveRule) bool {
		return isReference(rule) && rule.Comment == r.ContainerID && (len(r.Addrs) == 0 || r.isMentionedBy(rule))
	}
	for _, f := range nft.Families() {
		if err := (nft.Removal{Table: referenceTable(f), Rule: isOwn}).Remove(ctx, c.NF); err != nil {
			return nft.IfSupported(err)
		}
	}
	return nil
}

// collectReference removes the reference plugin's chains of containers that have no valid attachment on the network.
// The rules do not name the interface, so one valid attachment keeps a container's chain.
func (c call) collectReference(ctx context.Context, s *store) error {
	var errs []error
	for _, f := range nft.Families() {
		ids, err := natChain(f, "").Containers(ctx, c.NF, dnPrefix, c.Req.Network)
		errs = append(errs, err)
		for _, id := range ids {
			if !c.Req.Valid.HasContainer(id) {
				stale := &record{Attachment: cni.Attachment{Network: c.Req.Network, ContainerID: id}}
				errs = append(errs, c.delChains(ctx, s, stale, f))
			}
		}
	}
	return errors.Join(errs...)
}

// listReference returns the reference plugin's host ports, from chains in iptables without a record, and from its
// tables in nftables, whose rules do not name the network.
func listReference(ctx context.Context, nf *nft.Conn, hasRecord map[string]bool) (all []cni.Holding, err error) {
	add := func(p hostPort, a cni.Attachment, kept string) {
		h := p.holding(a)
		h.Kept, h.Reference = kept, true
		all = append(all, h)
	}
	var errs []error
	for _, f := range nft.Families() {
		rules, err := natChain(f, hostportDNAT).Rules(ctx, nf, func(chain string) bool {
			return ipt.IsContainerChain(dnPrefix, chain) && !hasRecord[chain]
		})
		owners := map[string]cni.Attachment{}
		for _, r := range rules {
			if network, id, ok := ipt.ParseOwner(r.Option("--comment")); ok {
				owners[r.Option("-j")] = cni.Attachment{Network: network, ContainerID: id}
			}
		}
		for _, r := range rules {
			owner, hasOwner := owners[r.Chain]
			if p, ok := iptHostPort(r); ok && hasOwner {
				add(p, owner, "iptables chain "+natTable+" "+r.Chain)
			}
		}
		live, liveErr := nf.Rules(referenceTable(f), "")
		for _, r := range live {
			if p, ok := nftHostPort(f, r); ok {
				add(p, cni.Attachment{ContainerID: r.Comment}, "nft chain "+referenceTable(f).String()+" "+r.Chain)
			}
		}
		errs = append(errs, err, nft.IfSupported(liveErr))
	}
	return all, errors.Join(errs...)
}

// nftHostPort returns the host port that a rule of the reference plugin in nftables translates.
func nftHostPort(f nft.Family, rule nft.LiveRule) (p hostPort, ok bool) {
	size := len(nft.AddrKey(unspecified(f)))
	protos, ports, addrs := rule.ComparedValues(1), rule.ComparedValues(2), rule.ComparedValues(size)
	targets, targetPorts := rule.LoadedValues(size), rule.LoadedValues(2)
	if !isReference(rule) || len(protos) == 0 || len(ports) == 0 || len(targets) == 0 || len(targetPorts) == 0 {
		return p, false
	}
	addr, _ := netip.AddrFromSlice(targets[0])
	p = hostPort{Proto: proto(protos[len(protos)-1][0]), Addr: unspecified(f), Port: binary.BigEndian.Uint16(ports[0]),
		Target: netip.AddrPortFrom(addr, binary.BigEndian.Uint16(targetPorts[0]))}
	if len(addrs) > 0 {
		p.Addr, _ = netip.AddrFromSlice(addrs[0])
	}
	return p, true
}
