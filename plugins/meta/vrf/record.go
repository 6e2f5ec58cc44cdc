package main

import (
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	recordDir = "/run/hawser/vrf"
	// vrfMark is the alias of a VRF that ADD made.
	vrfMark = "hawser vrf"
)

func records() statefile.Records[record] { return statefile.Records[record]{Path: recordDir} }

// record says what an attachment's interface had before ADD, and where. It is written before the first effect.
type record struct {
	cni.Attachment
	Path   string           `json:"path"` // CNI_NETNS
	Netns  ns.Identity      `json:"netns"`
	VRF    string           `json:"vrf"`
	Made   bool             `json:"made"`   // by this ADD, which may have died before it gave the alias
	Link   int              `json:"link"`   // index of the interface
	Routes []rtnl.RouteCopy `json:"routes"` // in the order in which they can be made
}

// Valid says whether an ADD can have written the record: DEL makes routes of it.
func (r record) Valid() bool {
	for _, route := range r.Routes {
		_, isOurs := route.HopsOf(r.Link)
		isIP := route.Header.Family == unix.AF_INET || route.Header.Family == unix.AF_INET6
		if !isOurs || !isIP || route.Table() == unix.RT_TABLE_LOCAL {
			return false
		}
	}
	return r.VRF != ""
}
