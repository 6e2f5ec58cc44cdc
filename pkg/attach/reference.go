package attach

import (
	"errors"
	"strings"

	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findReference finds the pair that the reference plugin created. It searches for the interface in the container's
// namespace, and otherwise for the host end that prevResult names, which must be connected to that namespace. The host
// end of a plugin with a bridge must be a port of the bridge or, if the bridge was deleted, of no bridge.
func (f *foundLink) findReference(bridge string) (err error) {
	var master rtnl.Link
	if bridge != "" {
		if master, err = f.host.Link(bridge); netplugin.IgnoreNoLink(err) != nil {
			return err
		}
	}
	if f.cont, err = netplugin.DialContainer(f.req); err != nil {
		return err
	}
	if f.req.NS != nil {
		end, err := f.cont.Link(f.req.IfName)
		if err == nil && hasOtherMAC(f.req, end) {
			err = rtnl.ErrNoLink // CNI_NETNS is another container's namespace now
		}
		if err == nil {
			_, err = referencePeer(f.host, f.cont, end, master.Index)
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			f.conn, f.link = f.cont, end
			return err
		}
	}
	isCandidate := func(l rtnl.Link) bool { return isReferenceHostEnd(l, master.Index) }
	f.link, err = netplugin.HostEndInResult(f.host, f.cont, f.req.PrevResult, isCandidate)
	return err
}

// referencePeer returns the host end of a container's interface that the reference plugin created. master is the index
// of the bridge whose port the host end must be, or 0. An interface with an alias has no such host end, because
// host-device writes an alias to each device that it moves into the container.
func referencePeer(host, cont *rtnl.Conn, end rtnl.Link, master int) (rtnl.Link, error) {
	if end.Alias != "" {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	l, err := host.OtherEnd(end, cont)
	if err == nil && !isReferenceHostEnd(l, master) {
		err = rtnl.ErrNoLink
	}
	return l, err
}

// isReferenceHostEnd reports whether l is a host end that the reference plugin, or another program, created. Hawser's
// host ends have a mark or a group. Without a bridge, only a name such as veth1a2b3c4d distinguishes the reference
// plugin's host end from a host end of Calico or Cilium.
func isReferenceHostEnd(l rtnl.Link, master int) bool {
	return l.Kind == "veth" && l.Alias == "" && l.Group == 0 && l.Master == master &&
		(master != 0 || strings.HasPrefix(l.Name, "veth"))
}

// findReferenceChild finds the link that the reference plugin created, by its name, its kind and the MAC address in
// prevResult, if there is one.
func (f *foundLink) findReferenceChild(kind string) error {
	if f.cont == nil {
		return rtnl.ErrNoLink
	}
	l, err := f.cont.Link(f.req.IfName)
	if err == nil && (l.Kind != kind || l.Alias != "" || l.Group != 0 || hasOtherMAC(f.req, l)) {
		err = rtnl.ErrNoLink
	}
	f.link = l
	return err
}
