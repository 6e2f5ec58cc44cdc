package clusterlocal

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
)

var errTaken = errors.New("is reserved already")

// lease says who has an address, which its name tells.
type lease struct {
	name string    // of the object, see nameOf
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
