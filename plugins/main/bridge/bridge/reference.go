package bridge

import (
	"context"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// The reference plugin's MAC spoof check is a jump in PREROUTING, with a comment that names the container and the
// interface, to a chain that jumps to a second chain.
var referenceSpoofTable = nft.Table{Family: nft.Bridge, Name: "nat"}

func referenceSpoofChains(a cni.Attachment) []string {
	first := "cni-br-iface-" + a.ContainerID + "-" + a.IfName
	return []string{first, first + "-mac"}
}

// isReferenceComplete reports whether the attachment has a check of the reference plugin from which no rule is missing.
func isReferenceComplete(nf *nft.Conn, a cni.Attachment) bool {
	chains := referenceSpoofChains(a)
	path := []string{"PREROUTING", chains[0], chains[1]}
	for i, chain := range path[:2] {
		rules, err := nf.Rules(referenceSpoofTable, chain)
		if err != nil || !slices.ContainsFunc(rules, func(r nft.LiveRule) bool { return r.Target == path[i+1] }) {
			return false
		}
	}
	// One rule accepts the container's address, the other drops the rest.
	rules, err := nf.Rules(referenceSpoofTable, path[2])
	return err == nil && len(rules) >= 2
}

// removeReferenceSpoofCheck removes the reference plugin's check of the attachment.
func removeReferenceSpoofCheck(ctx context.Context, nf *nft.Conn, a cni.Attachment) error {
	chains := referenceSpoofChains(a)
	return nft.IfSupported(nft.Removal{Table: referenceSpoofTable, Chain: "PREROUTING", Drop: chains,
		Rule: func(r nft.LiveRule) bool {
			return r.Target == chains[0] || r.Comment == "macspoofchk-"+a.ContainerID+"-"+a.IfName
		}}.Remove(ctx, nf))
}
