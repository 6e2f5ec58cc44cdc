package firewall

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	tenants "github.com/hawser-cni/plugins/pkg/policy"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// policy is an ingress policy. It limits which packets reach the containers of a bridge.
//
// The rule: a bridge has the strictest policy that one of its attachments wants. Each attachment wants the policy of
// its own ADD until its DEL. Therefore, an ADD can only make the bridge's policy stricter, a DEL can only make it less
// strict, and the bridge has no policy after its last attachment.
//
// This file applies the rule to the records. A policy is stored in nftables for attachments on the backends nftables
// and firewalld (stagePolicy, nftablesPolicy), and in iptables for attachments on the backend iptables (editPolicy,
// iptablesPolicy). A bridge's policies in nftables and in iptables are independent of each other. With the policy
// isolated, the kernel's flag of the same name also separates the ports of the bridge (isolation.go).
type policy string

const (
	policyOpen       policy = "open"
	policySameBridge policy = "same-bridge" // not reachable from other bridges that have a policy
	policyIsolated   policy = "isolated"    // not reachable from the same bridge either
)

// policies returns all policies, the strictest one last.
func policies() []policy { return []policy{policyOpen, policySameBridge, policyIsolated} }

// isAtLeast reports whether p is as strict as q, or stricter.
func (p policy) isAtLeast(q policy) bool {
	return slices.Index(policies(), p) >= slices.Index(policies(), q)
}

// stricter returns the stricter of two policies.
func stricter(p, q policy) policy {
	if p.isAtLeast(q) {
		return p
	}
	return q
}

// decidePolicy returns the policy that the bridge must have after the ADD of the record's attachment, and adjusts the
// isolated flags of the ports.
func (c call) decidePolicy(ctx context.Context, s *store, r *record) (p policy, err error) {
	if r.Bridge == "" {
		return policyOpen, nil
	}
	if r.Backend != iptables { // a lookup in the kernel can save reading all records
		if p, err = c.nftablesPolicy(r.Bridge); err != nil {
			return p, err
		}
	}
	if p == "" || !p.isAtLeast(r.Policy) {
		if p, err = r.bridgePolicy(s); err != nil {
			return p, err
		}
	}
	if p != r.Policy {
		c.Req.Warn("ingressPolicy: bridge %q keeps the policy %s of its other containers until they end, instead of %s",
			r.Bridge, p, r.Policy)
	}
	if p != policyIsolated {
		return p, nil
	}
	return p, c.isolatePorts(ctx, s, r)
}

// refuseStricter returns code 103 if the policy is stricter than the bridge's and would restrict another network: a
// network of the administrator that names the bridge, or a network that has a port of the bridge. A configuration of
// the administrator is not refused on a bridge that it names. If a file of the administrator cannot be read, and no
// other file shows that the configuration is the administrator's, the error has code 5.
func (c call) refuseStricter(s *store, r *record) error {
	if r.Policy == policyOpen {
		return nil
	}
	asked, p, err := *r, policyOpen, error(nil)
	if r.Backend != iptables {
		p, err = c.nftablesPolicy(r.Bridge)
	}
	if errors.Is(err, nft.ErrUnsupported) && r.Backend == auto {
		asked.Backend = iptables // add will use it instead of nftables
	}
	if err = nft.IfSupported(err); err == nil && !p.isAtLeast(r.Policy) {
		p, err = asked.otherPolicies(s, r.Policy)
	}
	if err != nil || p.isAtLeast(r.Policy) {
		return err
	}
	networks, unread, err := tenants.NetworksFor(tenants.File, c.Req.Conf)
	if err != nil {
		return err
	}
	holder, isImpostor := "", false // isImpostor: a network of the administrator has the same name
	for _, n := range networks {
		switch hasBridge := slices.Contains(n.Bridges, r.Bridge); {
		case hasBridge && n.IsOwn:
			return nil
		case hasBridge:
			holder = fmt.Sprintf("network %q of the administrator", n.Name)
		}
		isImpostor = isImpostor || n.Name == r.Network
	}
	if _, ok := errors.AsType[*fs.PathError](unread); ok {
		return cni.Errorf(cni.CodeIO, "ingressPolicy: %q: networks of the administrator: %w", r.Policy, unread)
	}
	if holder == "" {
		holder, err = c.findNeighbor(r, isImpostor)
	}
	if err != nil || holder == "" {
		return err
	}
	skipped := ""
	if unread != nil {
		skipped = "; " + unread.Error()
	}
	return cni.Errorf(cni.CodeConflict, "ingressPolicy: %q: bridge %q also connects %s, which the policy would "+
		"restrict; use another bridge, or a list in a directory of the administrator (trustedDirs in %s, by default "+
		"/etc/cni/net.d)%s", r.Policy, r.Bridge, holder, tenants.File, skipped)
}

// findNeighbor returns a description of a container of another network to which a policy of the record's bridge would
// apply, or "". A policy of an interface such as cni0.5 applies to the ports in VLAN 5, and a policy of the bridge to
// all ports. If isImpostor is true, a network with the same name is also another network.
func (c call) findNeighbor(r *record, isImpostor bool) (holder string, err error) {
	bridge, err := c.Host.LinkByIndex(c.HostEnd.Master)
	if err != nil {
		return "", err
	}
	ports, err := c.Host.Ports(bridge.Index)
	number, isVLAN := strings.CutPrefix(r.Bridge, bridge.Name+".")
	for _, port := range ports {
		owner, hasMark := cni.ParseMark(port.Alias)
		if !hasMark || port.Index == c.HostEnd.Index || owner.IsOn(r.Network) && !isImpostor {
			continue
		}
		vlans, err := c.Host.VLANs(port.Index)
		isSameVLAN := func(v rtnl.VLAN) bool { return strconv.Itoa(int(v.ID)) == number }
		if err != nil || !isVLAN || slices.ContainsFunc(vlans, isSameVLAN) {
			return owner.String(), err
		}
	}
	return "", err
}

// bridgePolicy returns the strictest policy that any record, including this one, wants for the record's bridge.
func (r *record) bridgePolicy(s *store) (policy, error) {
	others, err := r.otherPolicies(s, policyIsolated)
	return stricter(r.Policy, others), err
}

// otherPolicies returns the strictest policy that other records want for the record's bridge, or limit if that is less
// strict. It stops reading at the first record that wants limit or a stricter policy.
func (r *record) otherPolicies(s *store, limit policy) (policy, error) {
	p := policyOpen
	if limit == policyOpen {
		return policyOpen, nil
	}
	isReached, err := s.Any(func(o record) bool {
		if r.sharesBridge(o) {
			p = stricter(p, o.Policy)
		}
		return p.isAtLeast(limit)
	})
	if isReached {
		p = limit
	}
	return p, err
}

// sharesBridge reports whether another record has the same bridge and stores policies in the same tables.
func (r *record) sharesBridge(o record) bool {
	hasSameTables := (o.Backend == iptables) == (r.Backend == iptables)
	return o.Hash() != r.Hash() && r.Bridge != "" && o.Bridge == r.Bridge && hasSameTables
}

// sweepPolicies removes the policies of bridges that do not exist or have no ports. It also removes the reference
// plugin's policies there, because the reference plugin never removes a policy.
func (c call) sweepPolicies(ctx context.Context) error {
	live, err := c.NF.Elements(table, policyBridgeSet)
	errs := []error{nft.IfSupported(err)}
	for _, e := range live {
		errs = append(errs, c.removeIfUnused(string(e.Key), func(bridge string) error {
			return elements().Update(ctx, c.NF, func(tx *nft.Tx) error { return stagePolicy(tx, bridge, policyOpen) })
		}))
	}
	for _, f := range nft.Families() {
		keys, err := c.ruleKeys(ctx, f, stage2)
		for key := range keys {
			err = errors.Join(err, c.removeIfUnused(key, func(bridge string) error {
				return c.editFilter(ctx, "", f, func(e *ipt.Edit) { editPolicy(e, bridge, policyOpen) })
			}))
		}
		errs = append(errs, ipt.WarnIfMissing(c.Req.Warn, foreignRules, err))
	}
	return errors.Join(errs...)
}

// removeIfUnused calls remove with the interface name in an nf_tables key if no such interface exists, or if it is a
// bridge without ports.
func (c call) removeIfUnused(key string, remove func(bridge string) error) error {
	name := strings.TrimRight(key, "\x00")
	link, err := c.Host.Link(name)
	if errors.Is(err, rtnl.ErrNoLink) {
		return remove(name)
	}
	if err != nil || link.Kind != "bridge" {
		return err
	}
	ports, err := c.Host.Ports(link.Index)
	if err != nil || len(ports) > 0 {
		return err
	}
	return remove(name)
}
