package cni

import (
	"strings"
	"time"
)

// Holding is one item that a plugin keeps for an attachment, such as an address or a host port, for the tool.
type Holding struct {
	Attachment
	Plugin string      `json:"plugin"` // the plugin that keeps the item
	Kind   HoldingKind `json:"kind"`
	// Value describes the item in the form of the kernel's own tools. The object that Kind names comes first, for
	// example an address, a link, or a port with its target; other information follows.
	Value string `json:"value"`
	// Kept is the place of the item: the path of a file, or a kernel object ("nft map inet hawser dnat4").
	Kept      string `json:"kept"`
	NetnsPath string `json:"netnsPath,omitempty"` // path of the container's namespace; empty if unknown
	// Since is the time of the last write to Kept. Later calls and renewals change it.
	Since time.Time `json:"since,omitzero"`
	// Reference is true if the reference plugin of this name created the item. Network and IfName can then be empty.
	Reference bool `json:"reference,omitempty"`
	// NetnsInode and NetnsCookie identify the container's namespace in this boot. 0 means not recorded.
	NetnsInode, NetnsCookie uint64 `json:"-"`
	IsOfEarlierBoot         bool   `json:"-"` // true if no container of this boot has the holding
	MarkHash                string `json:"-"` // hash in the mark that Attachment is from; empty if it is from a record
	// Processes is the inode of the PID namespace of the call that created the item in this boot. 0 means not recorded.
	Processes uint64 `json:"-"`
}

// HoldingKind is the kind of a Holding.
type HoldingKind string

// The kinds of holdings.
const (
	HeldAddress    HoldingKind = "address"    // from IPAM
	HeldLink       HoldingKind = "interface"  // the container's interface, if it has no host end
	HeldHostEnd    HoldingKind = "host end"   // of the container's pair
	HeldDevice     HoldingKind = "device"     // device of the host that is in the container
	HeldPort       HoldingKind = "host port"  // with its target
	HeldMasquerade HoldingKind = "masquerade" // masquerading of an address
	HeldAccept     HoldingKind = "firewall"   // accepted addresses, with the backend and the policy
	HeldMAC        HoldingKind = "MAC check"  // of the frames that enter a bridge port
	HeldLimit      HoldingKind = "limit"      // bandwidth limit
	HeldRouting    HoldingKind = "routing"    // tables and rules, a VRF
	HeldSetting    HoldingKind = "setting"    // kernel setting, with its former value
)

// BelongsTo reports whether the holding belongs to a network, or its network is not recorded.
func (h Holding) BelongsTo(network string) bool { return h.Network == "" || h.IsOn(network) }

// IsOn reports whether the attachment is on a network. It also accepts a result of ParseMark, in which a long network
// name is shortened.
func (a Attachment) IsOn(network string) bool {
	return a.Network == network || a.Network == networkLabel(network)
}

// HoldingOf returns a holding of the attachment that a mark names. ok is false if mark cannot be a mark.
func HoldingOf(mark string) (h Holding, ok bool) {
	h.Attachment, ok = ParseMark(mark)
	h.MarkHash, _, _ = strings.Cut(mark, " ")
	return h, ok
}

// ParseMark parses the result of Mark. Parts that Mark has shortened or in which it has replaced characters remain so.
// ok is false if mark cannot be the mark of an attachment.
func ParseMark(mark string) (a Attachment, ok bool) {
	hash, rest, _ := strings.Cut(mark, " ")
	a.Network, rest, _ = strings.Cut(rest, " ")
	a.ContainerID, a.IfName, _ = strings.Cut(rest, " ")
	isLossy := len(mark) == markMax || strings.Contains(a.Network, "~") || strings.Contains(a.IfName, "?")
	return a, isHash(hash) && a.Network != "" && a.ContainerID != "" && (isLossy || a.Owns(mark))
}
