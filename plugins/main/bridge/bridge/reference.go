package bridge

import (
	"context"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// The MAC spoof checks that the reference made: a jump in PREROUTING with a comment that names container and
// interface, to a chain that jumps to another one.
var referenceSpoofTable = nft.Table{Family: nft.Bridge, Name: "nat"}

func referenceSpoofChains(a cni.Attachment) []string {
	first := "cni-br-iface-" + a.ContainerID + "-" + a.IfName
	return []string{first, first + "-mac"}
}

// isReferenceWhole tells whether the attachment has a check of the reference's that nothing is missing of: a jump to
// the first chain, from there to the second, and what that one does with the frame.
func isReferenceWhole(nf *nft.Conn, a cni.Attachment) bool {
	chains := referenceSpoofChains(a)
	way := []string{"PREROUTING", chains[0], chains[1]}
	for i, chain := range way[:2] {
		rules, err := nf.Rules(referenceSpoofTable, chain)
		if err != nil || !slices.ContainsFunc(rules, func(r nft.LiveRule) bool { return r.Target == way[i+1] }) {
			return false
		}
	}
	// One rule lets the address pass, the other drops the rest.
	rules, err := nf.Rules(referenceSpoofTable, way[2])
	return err == nil && len(rules) >= 2
}

// removeReferenceSpoofCheck removes the attachment's check that the reference made.
func removeReferenceSpoofCheck(ctx context.Context, nf *nft.Conn, a cni.Attachment) error {
	chains := referenceSpoofChains(a)
	return nft.IfSupported(nft.Removal{Table: referenceSpoofTable, Chain: "PREROUTING", Drop: chains,
		Rule: func(r nft.LiveRule) bool {
			return r.Target == chains[0] || r.Comment == "macspoofchk-"+a.ContainerID+"-"+a.IfName
		}}.Remove(ctx, nf))
}
