package masq

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// referenceTable is the reference plugins' table in nftables. It has one rule for each address. The rule's comment
// names the owner: "<hash of the network>-<hash of interface and container>, net: N, if: I, id: C". The hashes have 16
// hexadecimal digits, and the comment is truncated to 128 bytes.
var referenceTable = nft.Table{Family: nft.INet, Name: "cni_plugins_masquerade"}

const referenceChain = "masq_checks"

// referenceMark returns the beginning of the comment on the reference plugins' rules for an attachment.
func referenceMark(a cni.Attachment) string {
	return cni.Digest(a.Network, 16) + "-" + cni.Digest(a.IfName+":"+a.ContainerID, 16)
}

func delReference(ctx context.Context, nf *nft.Conn, a cni.Attachment) error {
	mark := referenceMark(a)
	return removeReference(ctx, nf, func(comment string) bool { return strings.HasPrefix(comment, mark) })
}

// checkReference verifies that the reference plugins' table has as many rules for the attachment as it has addresses.
func checkReference(nf *nft.Conn, c Config) error {
	rules, err := nf.Rules(referenceTable, referenceChain)
	if err != nil {
		return err
	}
	mark := referenceMark(c.Attachment)
	own := slices.DeleteFunc(rules, func(r nft.LiveRule) bool { return !strings.HasPrefix(r.Comment, mark) })
	if len(own) < len(distinct(c.Addrs)) {
		return cni.Drift("nftables table %q: %w: %d rules of the attachment", referenceTable, nft.ErrDrift, len(own))
	}
	return nil
}

func gcReference(ctx context.Context, nf *nft.Conn, valid cni.Set) error {
	marks := map[string]bool{}
	for _, a := range valid.All {
		marks[referenceMark(a)] = true
	}
	prefix := cni.Digest(valid.Network, 16) + "-"
	return removeReference(ctx, nf, func(comment string) bool {
		mark, _, _ := strings.Cut(comment, ",")
		return strings.HasPrefix(mark, prefix) && !marks[mark]
	})
}

func removeReference(ctx context.Context, nf *nft.Conn, matches func(comment string) bool) error {
	return nft.Removal{Table: referenceTable, Chain: referenceChain,
		Rule: func(r nft.LiveRule) bool { return matches(r.Comment) }}.Remove(ctx, nf)
}

// listReference returns the addresses that the reference plugins masquerade in nftables. The comments name the owners.
func listReference(nf *nft.Conn) (all []cni.Holding, err error) {
	rules, err := nf.Rules(referenceTable, referenceChain)
	for _, r := range rules {
		_, owner, _ := strings.Cut(r.Comment, ", net: ")
		network, rest, _ := strings.Cut(owner, ", if: ")
		ifName, id, isComplete := strings.Cut(rest, ", id: ")
		addrs := append(r.ComparedValues(net.IPv4len), r.ComparedValues(net.IPv6len)...)
		if isComplete && len(addrs) > 0 {
			addr, _ := netip.AddrFromSlice(addrs[0]) // the source
			all = append(all, cni.Holding{Kind: cni.HeldMasquerade, Value: addr.String(), Reference: true,
				Kept:       "nft chain " + referenceTable.String() + " " + referenceChain,
				Attachment: cni.Attachment{Network: network, ContainerID: id, IfName: ifName}})
		}
	}
	return all, err
}
