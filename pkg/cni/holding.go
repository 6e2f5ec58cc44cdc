package cni

import (
	"strings"
	"time"
)

// Holding is one thing that belongs to an attachment, as the List handler of the plugin that keeps it says.
type Holding struct {
	Attachment
	// Plugin is the plugin that keeps it.
	Plugin string `json:"plugin"`
	// Kind is what it is: one of the constants below.
	Kind HoldingKind `json:"kind"`
	// Value is the thing itself, as the kernel's own tools write it: an address, a link, a port and where it leads to.
	// What its kind says comes first, and what is known of that follows.
	Value string `json:"value"`
	// Kept says where it is kept: the path of a file, or an object of the kernel ("nft map inet hawser dnat4").
	Kept string `json:"kept"`
	// Netns is the path of the container's namespace, where the plugin knows it.
	Netns string `json:"netns,omitempty"`
	// Since is when Kept was written last: when it was made, unless a later call or a renewal changed that.
	Since time.Time `json:"since,omitzero"`
	// Reference says that the reference plugin of this name made it. Network and IfName are empty where that one does
	// not write them down.
	Reference bool `json:"reference,omitempty"`
	// Processes is the inode of the PID namespace of the call that made it in this boot; 0 = not written down.
	Processes uint64 `json:"-"`
}

// HoldingKind is what a Holding is.
type HoldingKind string

// The kinds of holdings.
const (
	HeldAddress    HoldingKind = "address"    // that IPAM lent
	HeldLink       HoldingKind = "interface"  // the container's, without a host end
	HeldHostEnd    HoldingKind = "host end"   // of a pair
	HeldDevice     HoldingKind = "device"     // of the host, in the container meanwhile
	HeldPort       HoldingKind = "host port"  // and where it leads to
	HeldMasquerade HoldingKind = "masquerade" // of an address
	HeldAccept     HoldingKind = "firewall"   // addresses and the policy of their network
	HeldMAC        HoldingKind = "MAC check"  // of the frames that a port sends
	HeldLimit      HoldingKind = "limit"      // of the bandwidth
	HeldRouting    HoldingKind = "routing"    // tables and rules, a VRF
	HeldSetting    HoldingKind = "setting"    // of the kernel, with what was there before
)

// IsOf says whether the holding is of the network, as far as it says of which it is.
func (h Holding) IsOf(network string) bool {
	return h.Network == "" || h.Network == network || h.Network == networkLabel(network)
}

// ParseMark is the reverse of Mark. A long network name stays as the mark has it, and what was cut or replaced there
// stays so. What no attachment can have written is not ok.
func ParseMark(mark string) (a Attachment, ok bool) {
	parts := strings.SplitN(mark, " ", 4)
	if len(parts) < 3 || len(parts[0]) != hashLen || strings.Trim(parts[0], "0123456789abcdef") != "" {
		return a, false
	}
	a = Attachment{Network: parts[1], ContainerID: parts[2]}
	if len(parts) == 4 {
		a.IfName = parts[3]
	}
	isLossy := len(mark) == markMax || strings.Contains(a.Network, "~") || strings.Contains(a.IfName, "?")
	return a, a.Network != "" && a.ContainerID != "" && (isLossy || a.Owns(mark))
}
