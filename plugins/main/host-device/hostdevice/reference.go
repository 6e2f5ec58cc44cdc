package hostdevice

import (
	"cmp"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findReference returns a record for a device that the reference plugin moved. The reference plugin's ADD sets the
// alias to the name on the host. A container can set any alias, so the result or the configuration must also name the
// device. If a record of another attachment has this interface, CNI_NETNS is the namespace of another container now,
// and the error matches rtnl.ErrNoLink.
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
	// The record has no NetnsPath, so that moveBack restores only the name.
	r := &record{Attachment: c.Req.Attachment, Link: c.ContEnd, PCI: c.ContEnd.Parent}
	r.Link.Name, r.Link.Alias, r.Link.Up = c.ContEnd.Alias, "", false
	i, _ := c.Req.PrevResult.ContainerInterface(c.Req.IfName)
	isKnown := r.isSelectedBy(d) || i.MAC != "" && strings.EqualFold(i.MAC, r.Link.MAC.String())
	if !isKnown || !cni.ValidIfName(r.Link.Name) {
		return nil, rtnl.ErrNoLink
	}
	return r, nil
}
