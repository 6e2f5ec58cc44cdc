package tool

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// keepNAT keeps the kernel translating the packets of translated connections while no other table has a rule for them.
// It creates a table that belongs to the socket of c (nft.AddTemporary), with a chain that registers NAT and a rule
// whose only effect is to register connection tracking.
func keepNAT(c *nft.Conn) error {
	return c.AddTemporary(nft.Layout{Table: nft.Table{Family: nft.INet, Name: "hawser_watch"}, Chains: []nft.Chain{{
		Name: "postrouting", Comment: "connections stay translated while others flush all rules",
		Hook: &nft.Hook{Type: "nat", Point: nft.Postrouting, Priority: 100}, Rules: []nft.Rule{{nft.CtEstablished()}},
	}}})
}

// watchDeletions calls handle for each table, chain or rule that any program deletes, until ctx ends. The chain is
// empty for a table. If the kernel could not report deletions because too many came at once, handle gets a zero Table.
func watchDeletions(ctx context.Context, handle func(t nft.Table, chain string)) error {
	ready := func() error { return nil }
	return nft.Listen(ctx, unix.NFNLGRP_NFTABLES, ready, func(e nft.Event) (more bool) {
		text := func(kind uint16) string { return nlattr.GetString(e.Attrs, kind) }
		switch e.Type {
		case unix.NFT_MSG_DELTABLE:
			handle(nft.Table{Family: e.Family, Name: text(unix.NFTA_TABLE_NAME)}, "")
		case unix.NFT_MSG_DELCHAIN:
			handle(nft.Table{Family: e.Family, Name: text(unix.NFTA_CHAIN_TABLE)}, text(unix.NFTA_CHAIN_NAME))
		case unix.NFT_MSG_DELRULE:
			handle(nft.Table{Family: e.Family, Name: text(unix.NFTA_RULE_TABLE)}, text(unix.NFTA_RULE_CHAIN))
		case nft.EventsLost:
			handle(nft.Table{}, "")
		}
		return true
	})
}
