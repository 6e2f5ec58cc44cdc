package firewall

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

const adminOverrides = "admin overrides" // reference plugin's comment on rules that jump to administrators' chains

// adminRules returns the jumps from FORWARD to CNI-FORWARD and from there to the administrator's chain. A missing jump
// is inserted at the beginning of its chain.
func adminRules(admin string) []ipt.Rule {
	return []ipt.Rule{adminJump(admin), commentedRule(forwardHook, "", "rules", cniForward)}
}

func adminJump(admin string) ipt.Rule { return commentedRule(cniForward, "", adminOverrides, admin) }

// ensureAdmin adds the rules that send packets through the administrator's chain. A new jump to a configured chain is
// placed after the jumps to other administrators' chains, because these may belong to another configuration's author.
func ensureAdmin(e *ipt.Edit, admin string) {
	e.CreateChains(cniForward, admin)
	var otherJumps []ipt.Rule
	if admin != defaultAdminChain && !e.Has(adminJump(admin)) {
		for _, r := range e.Rules {
			if r.Equal(adminJump(r.Option("-j"))) {
				otherJumps = append(otherJumps, r)
			}
		}
		e.Delete(func(r ipt.Rule) bool { return slices.ContainsFunc(otherJumps, r.Equal) })
	}
	e.Prepend(append(otherJumps, adminRules(admin)...)...)
}

// refuseForeignChain refuses a configured chain that belongs to other software, by its name or by jumps to it.
func (c call) refuseForeignChain(ctx context.Context, admin string) error {
	if admin == defaultAdminChain {
		return nil
	}
	for _, f := range nft.Families() {
		live, err := c.NF.Rules(filter(f), "")
		if err := nft.IfSupported(err); err != nil {
			return err
		}
		legacy, err := iptLegacy(f).Read(ctx, filterTable)
		if ipt.NotInstalled(err) {
			legacy, err = &ipt.Edit{}, nil
		}
		if err != nil {
			return err
		}
		isNFTJump, isLegacyJump := nftJumpFilter(admin), legacyJumpFilter(admin)
		isForeignNFT := func(l nft.LiveRule) bool { return isNFTJump(l) && isForeignJump(l.Chain, admin) }
		isForeignLegacy := func(r ipt.Rule) bool { return isLegacyJump(r) && isForeignJump(r.Chain, admin) }
		if slices.ContainsFunc(live, isForeignNFT) || slices.ContainsFunc(legacy.Rules, isForeignLegacy) {
			return cni.Refuse("iptablesAdminChainName", admin, "is a chain of other software, whose rules jump to it").
				Suggest("name a chain of your own")
		}
	}
	return nil
}

// foreignPrefixes begin the names of chains that other software creates and jumps to from FORWARD.
var foreignPrefixes = []string{"KUBE-", "CNI-", "HAWSER-", "DOCKER", "LIBVIRT_", "ufw", "cali-", "CILIUM_", "FLANNEL-",
	"WEAVE-", "NETAVARK"}

// isForeignJump reports whether a rule in chain that jumps to admin belongs to other software. Administrators add rules
// to FORWARD and CNI-ADMIN, and Docker leaves the chain DOCKER-USER to them.
func isForeignJump(chain, admin string) bool {
	hasPrefix := func(prefix string) bool { return strings.HasPrefix(admin, prefix) }
	return chain != forwardHook && chain != defaultAdminChain ||
		admin != "DOCKER-USER" && slices.ContainsFunc(foreignPrefixes, hasPrefix)
}

// nftJumpFilter returns a function that reports whether a rule outside CNI-FORWARD jumps to a chain.
func nftJumpFilter(chain string) func(nft.LiveRule) bool {
	return func(l nft.LiveRule) bool { return l.Target == chain && l.Chain != cniForward }
}

// legacyJumpFilter is nftJumpFilter for iptables-legacy.
func legacyJumpFilter(chain string) func(ipt.Rule) bool {
	return func(r ipt.Rule) bool {
		return r.Chain != cniForward && (r.Option("-j") == chain || r.Option("-g") == chain)
	}
}

// dropAdmin removes a configured chain, and the jump from CNI-FORWARD, if no other attachment names it. It keeps a
// chain with rules or other jumps to it and, like the reference plugin, the default chain.
func (c call) dropAdmin(ctx context.Context, s *store, r *record) error {
	admin := r.AdminChain
	if admin == defaultAdminChain || r.Backend == firewalld {
		return nil
	}
	isUsed, err := s.Any(func(o record) bool { return o.Hash() != r.Hash() && o.AdminChain == admin })
	if err != nil || isUsed {
		return err
	}
	var errs []error
	for _, f := range nft.Families() {
		live, err := c.NF.Rules(filter(f), "")
		isForeign := func(l nft.LiveRule) bool { return l.Chain == admin || nftJumpFilter(admin)(l) }
		if err == nil && !slices.ContainsFunc(live, isForeign) {
			err = nft.Removal{Table: filter(f), Chain: cniForward, Drop: []string{admin},
				Rule: func(l nft.LiveRule) bool { return l.Target == admin }}.Remove(ctx, c.NF)
		}
		errs = append(errs, nft.IfSupported(err))
		err = iptLegacy(f).Edit(ctx, filterTable, func(e *ipt.Edit) {
			isForeign := func(r ipt.Rule) bool { return r.Chain == admin || legacyJumpFilter(admin)(r) }
			if !slices.ContainsFunc(e.Rules, isForeign) {
				e.Delete(adminJump(admin).Equal)
				e.Remove(admin)
			}
		})
		if !ipt.NotInstalled(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
