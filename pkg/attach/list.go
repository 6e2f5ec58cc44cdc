package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// ListPairs lists host ends and the masquerades of their attachments: the host ends that are ports of a bridge if
// onBridge is true, otherwise all others. Masquerades without a host end, and the reference plugins' masquerades, do
// not show which plugin created them. ListPairs lists them if onBridge is true.
func ListPairs(ctx context.Context, onBridge bool) ([]cni.Holding, error) {
	host, nf := rtnl.Host(), nft.New()
	defer func() { _ = errors.Join(host.Close(), nf.Close()) }()
	links, err := host.LinkSummaries()
	bridges := map[int]string{}
	for _, l := range links {
		if l.Kind == "bridge" {
			bridges[l.Index] = l.Name
		}
	}
	var all []cni.Holding
	isListed := map[cni.Attachment]bool{} // false for attachments of the other plugin
	for _, l := range links {
		a, ok := cni.ParseMark(l.Alias)
		if !ok || !l.IsPairEnd() {
			continue
		}
		bridge, isPort := bridges[l.Master]
		if isListed[a] = isPort == onBridge; !isListed[a] {
			continue
		}
		h := cni.Holding{Attachment: a, Kind: cni.HeldHostEnd, Value: l.Name, Kept: "alias of " + l.Name}
		if isPort {
			h.Value += " master " + bridge
		}
		all = append(all, h)
	}
	if !onBridge && len(all) == 0 {
		return nil, err
	}
	masquerades, masqErr := masq.List(ctx, nf)
	for _, h := range masquerades {
		if listed, hasEnd := isListed[h.Attachment]; listed || !hasEnd && onBridge {
			all = append(all, h)
		}
	}
	return all, errors.Join(err, masqErr)
}

// listChildren lists the children of a kind from their records.
func listChildren(kind string) ([]cni.Holding, error) {
	host := rtnl.Host()
	defer host.Close()
	var masters map[int]string // names by index; nil until a child has a master on the host
	var linkErr error
	all, err := netplugin.Holdings(childRecords(), func(r childRecord) []cni.Holding {
		if r.Kind != kind {
			return nil
		}
		isOnHost := r.Master != 0 && !r.InContainer
		if isOnHost && masters == nil {
			masters = map[int]string{}
			links, err := host.LinkSummaries()
			for _, l := range links {
				masters[l.Index] = l.Name
			}
			linkErr = err
		}
		h := cni.Holding{Attachment: r.Attachment, Kind: cni.HeldLink, Value: r.IfName}
		if master := masters[r.Master]; isOnHost && master != "" {
			h.Value += "@" + master
		}
		h.Value += " type " + kind
		if r.VLAN != 0 {
			h.Value += fmt.Sprintf(" id %d", r.VLAN)
		}
		return netplugin.WithNetns(r.NetnsPath, r.Netns, h)
	})
	return all, errors.Join(err, linkErr)
}
