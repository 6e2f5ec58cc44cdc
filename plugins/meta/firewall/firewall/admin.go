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

// adminRules returns the jumps from FORWARD to CNI-FORWARD and from there to the administrator's chain. Each must be
// the first rule of its chain.
func adminRules(admin string) []ipt.Rule {
	return []ipt.Rule{adminJump(admin), commentedRule(forwardHook, "", "rules", cniForward)}
}

func adminJump(admin string) ipt.Rule { return commentedRule(cniForward, "", adminOverrides, admin) }

// ensureAdmin adds the rules that send packets through the administrator's chain. A chain that a configuration names
// comes after the chains that packets already pass, because these may belong to the author of another configuration.
func ensureAdmin(e *ipt.Edit, admin string) {
	e.CreateChains(cniForward, admin)
	var before []ipt.Rule
	if admin != defaultAdminChain && !e.Has(adminJump(admin)) {
		for _, r := range e.Rules {
			if r.Equal(adminJump(r.Option("-j"))) {
				before = append(before, r)
			}
		}
		e.Delete(func(r ipt.Rule) bool { return slices.ContainsFunc(before, r.Equal) })
	}
	e.Prepend(append(before, adminRules(admin)...)...)
}

// refuseOthersChain refuses a configured chain that belongs to other software, by its name or by rules that jump to it.
func (c call) refuseOthersChain(ctx context.Context, admin string) error {
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
		inNFTables, inLegacy := jumpsInNFTables(admin), jumpsInLegacy(admin)
		isOthers := func(l nft.LiveRule) bool { return inNFTables(l) && isForeignJump(l.Chain, admin) }
		isOthersLegacy := func(r ipt.Rule) bool { return inLegacy(r) && isForeignJump(r.Chain, admin) }
		if slices.ContainsFunc(live, isOthers) || slices.ContainsFunc(legacy.Rules, isOthersLegacy) {
			return cni.Refuse("iptablesAdminChainName", admin, "is a chain of other software, whose rules jump to it").
				Suggest("name a chain of your own")
		}
	}
	return nil
}

// othersChains lists prefixes of the names of chains that other software creates and jumps to from FORWARD.
var othersChains = []string{"KUBE-", "CNI-", "HAWSER-", "DOCKER", "LIBVIRT_", "ufw", "cali-", "CILIUM_", "FLANNEL-",
	"WEAVE-", "NETAVARK"}

// isForeignJump reports whether a rule in the chain from that jumps to admin belongs to other software. Administrators
// add rules to FORWARD and CNI-ADMIN, and Docker leaves the chain DOCKER-USER to them.
func isForeignJump(from, admin string) bool {
	isOthers := func(prefix string) bool { return strings.HasPrefix(admin, prefix) }
	return from != forwardHook && from != defaultAdminChain ||
		admin != "DOCKER-USER" && slices.ContainsFunc(othersChains, isOthers)
}

// jumpsInNFTables returns a function that reports whether a rule outside CNI-FORWARD jumps to a chain.
func jumpsInNFTables(chain string) func(nft.LiveRule) bool {
	return func(l nft.LiveRule) bool { return l.Target == chain && l.Chain != cniForward }
}

// jumpsInLegacy is jumpsInNFTables for iptables-legacy.
func jumpsInLegacy(chain string) func(ipt.Rule) bool {
	return func(r ipt.Rule) bool {
		return r.Chain != cniForward && (r.Option("-j") == chain || r.Option("-g") == chain)
	}
}

// dropAdmin removes a configured chain, and the rule that jumps to it, after the last attachment that names the chain.
// It keeps a chain with rules and, like the reference plugin, the default chain.
func (c call) dropAdmin(ctx context.Context, s *store, r *record) error {
	admin := r.AdminChain
	if admin == defaultAdminChain || r.Backend == firewalld {
		return nil
	}
	used, err := s.Any(func(o record) bool { return o.Hash() != r.Hash() && o.AdminChain == admin })
	if err != nil || used {
		return err
	}
	var errs []error
	for _, f := range nft.Families() {
		live, err := c.NF.Rules(filter(f), "")
		isOthers := func(l nft.LiveRule) bool { return l.Chain == admin || jumpsInNFTables(admin)(l) }
		if err == nil && !slices.ContainsFunc(live, isOthers) {
			err = nft.Removal{Table: filter(f), Chain: cniForward, Drop: []string{admin},
				Rule: func(l nft.LiveRule) bool { return l.Target == admin }}.Remove(ctx, c.NF)
		}
		errs = append(errs, nft.IfSupported(err))
		err = iptLegacy(f).Edit(ctx, filterTable, func(e *ipt.Edit) {
			isOthers := func(r ipt.Rule) bool { return r.Chain == admin || jumpsInLegacy(admin)(r) }
			if !slices.ContainsFunc(e.Rules, isOthers) {
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
