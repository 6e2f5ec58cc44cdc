package main

import (
	"context"
	"errors"
	"slices"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// referenceTable is where the reference plugins have host ports in nftables:
// rules whose comment is the container ID, without a network.
func (f fam) referenceTable() nft.Table { return nft.Table{Family: f.family, Name: "cni_hostport"} }

var referenceChains = []string{"hostports", "hostip_hostports", "masquerading"}

// delReference removes the reference's rules of a container: those that
// mention the attachment's addresses, or all where none is known.
func delReference(ctx context.Context, nf *nft.Conn, st *state) error {
	for _, f := range families() {
		t := f.referenceTable()
		there, err := nf.HasTable(t)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		err = nf.Update(ctx, func(tx *nft.Tx) error {
			for _, chain := range referenceChains {
				rules, err := tx.Rules(t, chain)
				if err != nil {
					return err
				}
				for _, r := range rules {
					if r.Comment == st.ContainerID && st.mentioned(r) {
						tx.DeleteRule(t, chain, r.Handle)
					}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *state) mentioned(r nft.LiveRule) bool {
	return len(s.Targets) == 0 || slices.ContainsFunc(s.Targets, func(t target) bool { return r.Mentions(nft.AddrKey(t.Addr.Addr())) })
}

// foreignContainers lists the containers for which iptables has chains of the
// network, in either variant.
func foreignContainers(ctx context.Context, nf *nft.Conn, network string) ([]string, error) {
	var ids []string
	var errs []error
	for _, f := range families() {
		where, err := f.found(nf, hostportDNAT)
		errs = append(errs, err)
		for _, v := range where {
			tool, err := ipt.FindVariant(ctx, f.ipt(), v)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			live, err := tool.List(ctx, natTable, hostportDNAT)
			errs = append(errs, err)
			for _, r := range live {
				net, id, ok := parseComment(r.Option("--comment"))
				if ok && net == network && r.Option("-j") == dnChain(net, id) && !slices.Contains(ids, id) {
					ids = append(ids, id)
				}
			}
		}
	}
	return ids, errors.Join(errs...)
}
