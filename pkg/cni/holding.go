package cni

import (
	"strings"
	"time"
)

// Holding is one thing that belongs to an attachment, as the List handler of the plugin that keeps it says.
type Holding struct {
	Attachment
	Plugin string      `json:"plugin"` // that keeps it
	Kind   HoldingKind `json:"kind"`
	// Value is the thing itself, as the kernel's own tools write it: an address, a link, a port and where it leads to.
	// What its kind says comes first, and what is known of that follows.
	Value string `json:"value"`
	// Kept says where it is kept: the path of a file, or an object of the kernel ("nft map inet hawser dnat4").
	Kept      string `json:"kept"`
	NetnsPath string `json:"netnsPath,omitempty"` // path of the container's namespace, where the plugin knows it
	// Since is when Kept was written last: when it was made, unless a later call or a renewal changed that.
	Since time.Time `json:"since,omitzero"`
	// Reference says that the reference plugin of this name made it. Network and IfName are empty where that one does
	// not write them down.
	Reference bool `json:"reference,omitempty"`
	// NetnsInode and NetnsCookie are the kernel's numbers of that namespace in this boot; 0: not written down.
	NetnsInode, NetnsCookie uint64 `json:"-"`
	// IsOfEarlierBoot is true if no container of this boot has the holding.
	IsOfEarlierBoot bool `json:"-"`
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
	hash, rest, _ := strings.Cut(mark, " ")
	a.Network, rest, _ = strings.Cut(rest, " ")
	a.ContainerID, a.IfName, _ = strings.Cut(rest, " ")
	isLossy := len(mark) == markMax || strings.Contains(a.Network, "~") || strings.Contains(a.IfName, "?")
	return a, isHash(hash) && a.Network != "" && a.ContainerID != "" && (isLossy || a.Owns(mark))
}
