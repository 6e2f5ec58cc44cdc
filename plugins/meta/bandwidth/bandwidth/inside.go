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

// records say where the limits of interfaces without host end are, and for people which.
func records() statefile.Records[netplugin.NetnsRecord] {
	return statefile.Records[netplugin.NetnsRecord]{Path: recordDir}
}

// keep writes the record, and has a failed ADD drop it unless the interface was limited before.
func (c *call) keep(ctx context.Context, want limits, live bool) error {
	var made []string
	for name, f := range want.each {
		made = append(made, limitText(name, f.Rate, c.Req.IfName))
	}
	if !live {
		c.Req.OnFail("drop the record", func(ctx context.Context) error { return records().Drop(ctx, c.Req.Hash()) })
	}
	return records().Put(ctx, c.NetnsRecord(made...))
}

// removeInside removes the limits of a record.
func removeInside(r netplugin.NetnsRecord, finder *ns.Finder) error {
	return r.Remove(finder, func(conn *rtnl.Conn) error {
		c := &call{Call: &netplugin.Call{Req: &skel.Request{Attachment: r.Attachment}}, at: conn, inside: true}
		end, err := conn.LinkByIndex(r.Link)
		if netplugin.IgnoreNoLink(err) != nil {
			return err
		}
		return c.remove(end)
	})
}

// listInside lists the records.
func listInside() ([]cni.Holding, error) {
	return netplugin.Holdings(records(), func(r netplugin.NetnsRecord) (all []cni.Holding) {
		for _, l := range r.Made {
			all = append(all, cni.Holding{Attachment: r.Attachment, Kind: cni.HeldLimit, Value: l})
		}
		return netplugin.WithNetns(r.Path, r.Netns, all...)
	})
}

// sides are the filters of what a link sends and receives. A host end sends what the container receives, and so does a
// tap, to the program that has it open.
func (c *call) sides(end rtnl.Link, l limits) (sent, received *filter) {
	if c.inside && end.Kind != "tun" {
		return l.egress, l.ingress
	}
	return l.ingress, l.egress
}

// refuse is an error where a link cannot be limited.
func (c *call) refuse(end rtnl.Link, want limits) error {
	if end.Kind == "ipvlan" && end.Mode == "l3s" && want.ingress != nil {
		return cni.Refuse("ingressRate", 8*want.ingress.Rate,
			"is not possible: an ipvlan of mode l3s receives nothing that could be limited").
			Suggest("take mode l2 or l3").WithCode(cni.CodeUnsupportedField)
	}
	return nil
}
