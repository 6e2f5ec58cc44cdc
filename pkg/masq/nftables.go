package masq

import (
	"context"

	"github.com/hawser-cni/plugins/pkg/nft"
)

// addNFTables makes the elements. It replaces those of other owners for the same addresses.
func addNFTables(ctx context.Context, nf *nft.Conn, c Config) error {
	return owned().Update(ctx, nf, func(ch *nft.Change) error { return ch.Put(items(c.Attachment, c.Addrs), nil) })
}

// delNFTables finds the elements by their addresses. Where one of them is missing, or no address is known, it reads
// all elements of the host.
func delNFTables(ctx context.Context, nf *nft.Conn, c Config) error {
	mine, hint := c.Attachment.Owns, items(c.Attachment, c.Addrs)
	found, err := owned().Live(nf, hint, mine)
	if err == nil && (len(found) == 0 || len(found) < len(hint)) {
		found, err = owned().All(nf, mine)
	}
	if err != nil {
		return err
	}
	return owned().Remove(ctx, nf, found, mine)
}

func checkNFTables(_ context.Context, nf *nft.Conn, c Config) error {
	return owned().Verify(nf, items(c.Attachment, c.Addrs))
}
