package firewall

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// delReference removes the rules that the reference plugin added for the addresses in prevResult, except rules that
// belong to Hawser's attachments. own is this attachment's record.
func (c call) delReference(ctx context.Context, s *store, own *record) error {
	r := &record{Attachment: c.Req.Attachment, Backend: iptables, options: options{Policy: policyOpen}}
	r.Addrs = addressesOf(c.Req.PrevResult, c.Req.IfName)
	if own.Backend == iptables {
		r.Addrs = without(r.Addrs, own.Addrs)
	}
	hasRules := false
	var errs []error
	for _, f := range r.families() {
		keys, err := c.ruleKeys(ctx, f, cniForward)
		errs = append(errs, err)
		hasRule := func(a netip.Addr) bool { return keys[string(nft.AddrKey(a))] }
		hasRules = hasRules || slices.ContainsFunc(r.Addrs, hasRule)
	}
	if hasRules {
		errs = append(errs, c.delReferenceRules(ctx, s, r))
	}
	c.delReferenceSources(ctx, s, own)
	return ipt.WarnIfMissing(c.Req.Warn, foreignRules, errors.Join(errs...))
}

// delReferenceRules removes the reference plugin's rules for the record's addresses and, with the bridge's last
// container, the bridge's policy. Like the reference plugin, it treats the first interface in prevResult as the bridge.
// Because the author of a configuration can write prevResult, it uses only addresses of the container's own interface
// (confirmAddrs).
func (c call) delReferenceRules(ctx context.Context, s *store, r *record) error {
	links, err := c.confirmAddrs(r)
	if err != nil || len(r.Addrs) == 0 {
		return err
	}
	if all := c.Req.PrevResult.Interfaces; len(all) > 0 && slices.Contains(links, all[0].Name) {
		r.Bridge, r.Policy = all[0].Name, policyIsolated
	}
	remaining, err := r.otherPolicies(s, r.Policy)
	if err == nil {
		err = errors.Join(r.releasePreexisting(ctx, s), c.delIPTables(ctx, s, r, remaining))
	}
	return err
}

// confirmAddrs removes from the record the addresses that the container's interface does not have, and warns of them,
// because they may belong to a live container. Without the namespace, it removes all addresses. It returns the names of
// the interface's host end and of the bridge of the host end.
func (c call) confirmAddrs(r *record) (links []string, err error) {
	var live []netip.Addr
	if c.Req.NS != nil {
		if live, links, err = c.readContainer(); err != nil {
			return nil, err
		}
	}
	all := r.Addrs
	r.Addrs = slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return !slices.Contains(live, a) })
	if len(r.Addrs) < len(all) {
		c.Req.Warn("%s for addresses in prevResult stay: interface %q of the container does not have them",
			foreignRules, c.Req.IfName)
	}
	return links, nil
}

const foreignRules = "rules of other plugins" // in warnings

// delReferenceSources removes addresses in prevResult from the configured zone, except addresses of the record own.
func (c call) delReferenceSources(ctx context.Context, s *store, own *record) {
	var w wireConfig
	_ = c.Req.Decode(&w) // a configuration that cannot be read names no zone
	r := &record{Attachment: c.Req.Attachment, Backend: firewalld, options: options{Zone: cmp.Or(w.Zone, defaultZone)}}
	r.Addrs = without(addressesOf(c.Req.PrevResult, c.Req.IfName), own.Addrs)
	if len(r.Addrs) == 0 {
		return
	}
	err := checkFirewalld(ctx)
	if errors.Is(err, errNoFirewalld) {
		return
	}
	if err == nil {
		_, err = c.confirmAddrs(r)
	}
	if err == nil && len(r.Addrs) > 0 {
		err = errors.Join(r.releasePreexisting(ctx, s), delFirewalld(ctx, s, r))
	}
	if err != nil {
		c.Req.Warn("sources of other plugins: %v", err)
	}
}

// ruleKeys returns the addresses and interfaces that rules of a chain match, in either variant, as nf_tables keys.
func (c call) ruleKeys(ctx context.Context, f nft.Family, chain string) (map[string]bool, error) {
	live, err := c.NF.Rules(filter(f), chain)
	if err := nft.IfSupported(err); err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, r := range live {
		for _, value := range r.ComparedValues(0) {
			out[string(value)] = true
		}
	}
	legacy, err := iptLegacy(f).Read(ctx, filterTable)
	if err != nil {
		return out, err
	}
	for _, r := range legacy.Rules {
		if r.Chain != chain {
			continue
		}
		if bridge := r.Option("-o"); bridge != "" {
			out[bridge+"\x00"] = true
		}
		if host, err := netip.ParsePrefix(r.Option("-s")); err == nil {
			out[string(nft.AddrKey(host.Addr()))] = true
		}
	}
	return out, nil
}

// referenceFinder returns a function that reports whether a table has a rule of a reference plugin's container on the
// record's bridge. Such a rule is for an address that has no record and that the host routes through the bridge.
func (c call) referenceFinder(s *store, r *record) (func(*ipt.Edit) bool, error) {
	bridge, err := c.Host.Link(r.Bridge)
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return nil, err
	}
	recorded := slices.Clone(r.Addrs)
	all, err := s.All()
	for _, o := range all {
		if o.Backend == iptables {
			recorded = append(recorded, o.Addrs...)
		}
	}
	isReference := func(rule ipt.Rule) bool {
		host, err := netip.ParsePrefix(rule.Option("-s"))
		if err != nil || rule.Chain != cniForward || slices.Contains(recorded, host.Addr()) {
			return false
		}
		index, err := c.Host.RouteTo(host.Addr())
		// If the route cannot be read, the rule is assumed to belong to such a container.
		return err == nil && index == bridge.Index || err != nil && !errors.Is(err, unix.ENETUNREACH)
	}
	return func(e *ipt.Edit) bool { return slices.ContainsFunc(e.Rules, isReference) }, err
}

// verifyReference verifies that the reference plugin's rules for an attachment exist in iptables or, unless iptables is
// the backend, that its addresses are sources of firewalld's zone.
func (c call) verifyReference(ctx context.Context, want *record) error {
	err := c.verifyIPTables(ctx, want)
	if err == nil || want.Backend == iptables {
		return err
	}
	if firewalldErr := verifyFirewalld(ctx, want); !errors.Is(firewalldErr, errNoFirewalld) {
		return firewalldErr
	}
	return err
}
