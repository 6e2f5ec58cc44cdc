package clusterlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// store keeps the leases where all nodes see them. It decides who has an address: of all who reserve one, one alone
// has no errTaken.
type store interface {
	// reserve makes the lease and sets its UID. Lost says that some request for it was not answered, whatever came of
	// the others: it may be carried out at any later time.
	reserve(ctx context.Context, l *lease) (lost bool, err error)
	// release removes the lease of this name and nonce; where its UID is known, without a look at it before. It needs
	// no more of the lease. Another one, or none, is no error.
	release(ctx context.Context, l lease) error
	// held returns the lease of a name; without one ok is false.
	held(ctx context.Context, name string) (l lease, ok bool, err error)
	// list returns the leases of a space, or of one node in it, which may be out of date. Now is the store's own clock.
	list(ctx context.Context, space, node string) (all []lease, now time.Time, err error)
	// probe says whether the store answers.
	probe(ctx context.Context) error
}

var errTaken = errors.New("is reserved already")

// lease says who has an address, which its name tells.
type lease struct {
	name string    // of the object, see nameOf
	uid  string    // the store's identifier, which is never used twice
	made time.Time // by the store's clock

	Space     string `json:"space"`
	Node      string `json:"node"`
	Network   string `json:"network"`
	Container string `json:"container"`
	IfName    string `json:"ifname"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	// Nonce is that of the ADD, so that it knows its lease from another one of the same attachment.
	Nonce string `json:"nonce"`
}

func (l lease) attachment() cni.Attachment {
	return cni.Attachment{Network: l.Network, ContainerID: l.Container, IfName: l.IfName}
}

// String says for messages who holds the lease.
func (l lease) String() string {
	text := fmt.Sprintf("node %q, %s", l.Node, l.attachment())
	if l.Pod != "" {
		text += fmt.Sprintf(", pod %q", l.Pod)
	}
	return text
}

// nameOf is the name of an address's lease: the space, a dot and the address, in IPv6 in full and with hyphens.
func nameOf(space string, addr netip.Addr) string {
	return space + "." + strings.ReplaceAll(addr.StringExpanded(), ":", "-")
}

// addressOf is the reverse of nameOf.
func addressOf(name string) (netip.Addr, bool) {
	_, text, _ := strings.Cut(name, ".")
	addr, err := netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
	return addr, err == nil
}
