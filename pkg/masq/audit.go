package masq

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"

	"github.com/hawser-cni/plugins/pkg/statefile"
)

func checkIPTables(ctx context.Context, nf *nft.Conn, c Config) error {
	ch := natChainOf(c.Attachment.Network, c.Attachment.ContainerID)
	var diffs []error
	for _, f := range families() {
		addrs := f.of(c.Addrs)
		if len(addrs) == 0 {
			continue
		}
		where, err := variants(nf, f, ch.name)
		if err != nil {
			return err
		}
		if len(where) == 0 {
			diffs = append(diffs, fmt.Errorf("iptables chain %q: %w: no such chain", ch.name, ErrMissing))
			continue
		}
		tool, err := ipt.FindVariant(ctx, f.ipt, where[0])
		if err != nil {
			return fmt.Errorf("chain %q of table nat (iptables-%s): %w", ch.name, where[0], err)
		}
		live, err := tool.List(ctx, nat, "")
		if err != nil {
			return err
		}
		want := ch.rules(f, addrs)
		for _, p := range addrs {
			want = append(want, ch.jump(p))
		}
		for _, r := range want {
			if !slices.ContainsFunc(live, r.Equal) {
				diffs = append(diffs, fmt.Errorf("iptables chain %q: %w: no rule %q", r.Chain, ErrMissing, r.Append()))
			}
		}
	}
	return errors.Join(diffs...)
}

func gcIPTables(ctx context.Context, nf *nft.Conn, network string, valid cni.Set) error {
	garbage := map[cni.Attachment]bool{}
	recs, err := records(network)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		for ifName := range rec.Interfaces {
			a := cni.Attachment{Network: network, ContainerID: rec.ContainerID, IfName: ifName}
			if !valid.Has(a) {
				garbage[a] = true
			}
		}
	}
	ids, err := containersOf(ctx, nf, network)
	errs := []error{err}
	for _, id := range ids {
		// The rules of the reference tell no interface apart: they stay until the container has none.
		if _, ours := recs[chainOf(network, id)]; !ours && !valid.HasContainer(id) {
			garbage[cni.Attachment{Network: network, ContainerID: id}] = true
		}
	}
	for a := range garbage {
		missing, err := delIPTables(ctx, nf, a, nil)
		errs = append(errs, missing, err)
	}
	return errors.Join(append(errs, sweepLocks(ctx))...)
}

// containersOf lists the containers for which the network has chains in either iptables.
func containersOf(ctx context.Context, nf *nft.Conn, network string) ([]string, error) {
	var ids []string
	var errs []error
	for _, f := range families() {
		where, err := variantsWithChains(nf, f)
		errs = append(errs, err)
		for _, v := range where {
			rules, err := listNAT(ctx, f, v)
			errs = append(errs, err)
			for _, r := range rules {
				net, id, ok := parseComment(r.Option("--comment"))
				name := chainOf(network, id)
				if ok && net == network && (r.Chain == name || r.Option("-j") == name) && !slices.Contains(ids, id) {
					ids = append(ids, id)
				}
			}
		}
	}
	return ids, errors.Join(errs...)
}

func listNAT(ctx context.Context, f family, v ipt.Variant) ([]ipt.Rule, error) {
	tool, err := ipt.FindVariant(ctx, f.ipt, v)
	if err != nil {
		return nil, fmt.Errorf("chains %q in table nat (iptables-%s): %w", "CNI-*", v, err)
	}
	return tool.List(ctx, nat, "")
}

// variantsWithChains says which iptables have any chain that may be one of these.
func variantsWithChains(nf *nft.Conn, f family) ([]ipt.Variant, error) {
	var out []ipt.Variant
	live, err := nf.Chains(f.table)
	if err := absent(err); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(live, func(c nft.LiveChain) bool { return isChainName(c.Name) }) {
		out = append(out, ipt.NFT)
	}
	has, err := ipt.LegacyHas(f.ipt, nat, "CNI-")
	if has {
		out = append(out, ipt.Legacy)
	}
	return out, err
}

func isChainName(name string) bool { return len(name) == len("CNI-")+24 && name[:4] == "CNI-" }

func statusIPTables(nf *nft.Conn) error {
	if err := statefile.Writable(stateDir); err != nil {
		return err
	}
	for _, f := range families() {
		if _, err := nf.HasTable(f.table); absent(err) != nil {
			return err
		}
	}
	// That of IPv6 is needed by containers with an address of that family only.
	if err := ipt.Installed(ipt.IPv4); err != nil {
		return fmt.Errorf("masquerade with iptables: %w", err)
	}
	return nil
}
