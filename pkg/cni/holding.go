package cni

import "time"

// Holding is one thing that belongs to an attachment, as the List handler of the plugin that keeps it says.
type Holding struct {
	Attachment
	// Plugin is the plugin that keeps it.
	Plugin string `json:"plugin"`
	// Kind is what it is: one of the constants below.
	Kind HoldingKind `json:"kind"`
	// Value is the thing itself, as the kernel's own tools write it: an address, a link, a port and where it leads to.
	Value string `json:"value"`
	// Kept says where it is kept: the path of a file, or an object of the kernel ("nft map inet hawser dnat4").
	Kept string `json:"kept"`
	// Netns is the path of the container's namespace, where the plugin knows it.
	Netns string `json:"netns,omitempty"`
	// Since is when it was made, where that is known.
	Since time.Time `json:"since,omitzero"`
	// Reference says that the reference plugin of this name made it. Network and IfName are empty where that one does
	// not write them down.
	Reference bool `json:"reference,omitempty"`
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
	HeldLimit      HoldingKind = "limit"      // of the bandwidth
	HeldRouting    HoldingKind = "routing"    // tables and rules, a VRF
	HeldSetting    HoldingKind = "setting"    // of the kernel, with what was there before
)
