package masq

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// List returns the masqueraded addresses of attachments from both backends, including the reference plugins'
// attachments. It does not lock.
func List(ctx context.Context, nf *nft.Conn) ([]cni.Holding, error) {
	addr := func(it nft.Item) string { return keyAddr(it).String() }
	all, err := Config{}.owned().Holdings(nf, cni.HeldMasquerade, addr)
	chains, chainErr := listIPTables(ctx, nf)
	rules, ruleErr := listReference(nf)
	return slices.Concat(all, chains, rules), errors.Join(err, chainErr, nft.IfSupported(ruleErr))
}

// listIPTables returns the addresses in the records, and the addresses of jumps to chains without a record, which are
// the reference plugins'.
func listIPTables(ctx context.Context, nf *nft.Conn) (all []cni.Holding, err error) {
	kept, err := records().List()
	ours := map[string]bool{} // chains
	for _, k := range kept {
		ours[k.Record.Hash()] = true
		for ifName, addrs := range k.Record.Interfaces {
			for _, p := range addrs {
				all = append(all, cni.Holding{Kind: cni.HeldMasquerade, Value: p.Addr().String(), Kept: k.Path,
					Since: k.Written, Attachment: cni.Attachment{Network: k.Record.Network,
						ContainerID: k.Record.ContainerID, IfName: ifName}})
			}
		}
	}
	errs := []error{err}
	for _, f := range nft.Families() {
		rules, err := newNATChain(f, cni.Attachment{}, nil, nil).Rules(ctx, nf, func(chain string) bool {
			return ipt.IsContainerChain(chainPrefix, chain) && !ours[chain]
		})
		errs = append(errs, err)
		for _, r := range rules {
			network, id, ok := ipt.ParseOwner(r.Option("--comment"))
			if from := r.Option("-s"); ok && r.Chain == postrouting {
				all = append(all, cni.Holding{Kind: cni.HeldMasquerade, Reference: true,
					Value:      strings.TrimSuffix(strings.TrimSuffix(from, "/32"), "/128"),
					Kept:       "iptables chain " + nat + " " + r.Option("-j"),
					Attachment: cni.Attachment{Network: network, ContainerID: id}})
			}
		}
	}
	return all, errors.Join(errs...)
}
