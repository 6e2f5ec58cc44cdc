package hostdevice

import (
	"cmp"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findReference finds the device that the reference moved, as it was on the host: its alias is its name there. The
// result or the configuration must know it, too, since a container can give anything an alias. An interface that
// another attachment's record names is not the reference's: the path leads to another container by now.
func (c call) findReference() (*record, error) {
	if c.Req.NS == nil {
		return nil, rtnl.ErrNoLink
	}
	if err := c.FindInterface(); err != nil {
		return nil, err
	}
	isRecorded := func(other record) bool { return other.Netns.Is(c.NetnsID) && other.IfName == c.Req.IfName }
	if recorded, err := c.records.Any(isRecorded); err != nil || recorded {
		return nil, cmp.Or(err, rtnl.ErrNoLink)
	}
	var w wireConfig
	_ = c.Req.Decode(&w)
	d, _ := w.device()
	r := &record{Attachment: c.Req.Attachment, Link: c.ContEnd, PCI: c.ContEnd.Parent}
	r.Link.Name, r.Link.Alias, r.Link.Up = c.ContEnd.Alias, "", false
	i, _ := c.Req.PrevResult.ContainerInterface(c.Req.IfName)
	isKnown := r.isMeant(d) || i.MAC != "" && strings.EqualFold(i.MAC, r.Link.MAC.String())
	if !isKnown || !cni.ValidIfName(r.Link.Name) {
		return nil, rtnl.ErrNoLink
	}
	return r, nil
}
