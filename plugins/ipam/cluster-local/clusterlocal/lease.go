package clusterlocal

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// errTaken is the error for an address that another attachment holds.
var errTaken = errors.New("is reserved already")

// lease is the reservation of an address for an attachment. Its name contains the address.
type lease struct {
	name    string    // object name, see nameOf
	uid     string    // object UID, which the API server never reuses
	created time.Time // API server's clock

	Space     string `json:"space"`
	Node      string `json:"node"`
	Network   string `json:"network"`
	Container string `json:"container"`
	IfName    string `json:"ifname"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	// Nonce identifies the ADD, so that its lease differs from another ADD's of the same attachment.
	Nonce string `json:"nonce"`
}

func (l lease) attachment() cni.Attachment {
	return cni.Attachment{Network: l.Network, ContainerID: l.Container, IfName: l.IfName}
}

// String describes the holder of the lease, for messages.
func (l lease) String() string {
	text := fmt.Sprintf("node %q, %s", l.Node, l.attachment())
	if l.Pod != "" {
		text += fmt.Sprintf(", pod %q", l.Pod)
	}
	return text
}

// nameOf returns the name of an address's lease: the space, a dot and the address. An IPv6 address is written in full
// and with hyphens instead of colons, for example "default.2001-0db8-0000-0000-0000-0000-0000-0001".
func nameOf(space string, addr netip.Addr) string {
	return space + "." + strings.ReplaceAll(addr.StringExpanded(), ":", "-")
}

// addressOf returns the address in a lease's name.
func addressOf(name string) (netip.Addr, bool) {
	_, text, _ := strings.Cut(name, ".")
	addr, err := netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
	return addr, err == nil
}
