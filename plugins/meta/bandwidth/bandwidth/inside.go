package bandwidth

import (
	"context"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const recordDir = "/run/hawser/bandwidth"

// records returns the store of records for interfaces without a host end. A record contains the namespace of the limits
// and, for the node tool, a description of them.
func records() *statefile.Store[netplugin.NetnsRecord] {
	return statefile.NewStore[netplugin.NetnsRecord](recordDir, statefile.DefaultWait)
}

// putRecord writes the record. The ADD's roll-back drops it, unless the interface already had limits.
func (c *call) putRecord(ctx context.Context, want limits, hadLimits bool) error {
	var texts []string
	for name, f := range want.each {
		texts = append(texts, limitText(name, f.Rate, c.Req.IfName))
	}
	if !hadLimits {
		c.Req.OnFail("drop the record", func(ctx context.Context) error { return records().Drop(ctx, c.Req.Hash()) })
	}
	return records().Put(ctx, c.NetnsRecord(texts...))
}

// removeInside removes the limits in the record's namespace, if the namespace still exists.
func removeInside(r netplugin.NetnsRecord, finder *ns.Finder) error {
	return r.Remove(finder, func(conn *rtnl.Conn) error {
		c := &call{Call: &netplugin.Call{Req: &skel.Request{Attachment: r.Attachment}}, conn: conn, isInside: true}
		end, err := conn.LinkByIndex(r.Link)
		if netplugin.IgnoreNoLink(err) != nil {
			return err
		}
		return c.removeLimits(end)
	})
}

// listInside returns the limits of all records.
func listInside() ([]cni.Holding, error) {
	return netplugin.Holdings(records(), func(r netplugin.NetnsRecord) (all []cni.Holding) {
		for _, l := range r.Objects {
			all = append(all, cni.Holding{Attachment: r.Attachment, Kind: cni.HeldLimit, Value: l})
		}
		return netplugin.WithNetns(r.NetnsPath, r.Netns, all...)
	})
}
