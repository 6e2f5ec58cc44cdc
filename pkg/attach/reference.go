package attach

import (
	"errors"

	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findReference finds the pair that the reference made: by the interface in the container's namespace or, if that
// fails, by the host end that prevResult names, if this end is connected to the same namespace. The host end of a
// plugin with a bridge must be a port of the bridge.
func (r *remains) findReference(bridge string) (err error) {
	var master rtnl.Link
	if bridge != "" {
		if master, err = r.host.Link(bridge); err != nil {
			return err
		}
	}
	if r.cont, err = netplugin.DialContainer(r.req); err != nil {
		return err
	}
	if r.req.NS != nil {
		end, err := r.cont.Link(r.req.IfName)
		if err == nil && changedMAC(r.req, end) {
			err = rtnl.ErrNoLink // the namespace is another container's by now
		}
		if err == nil {
			_, err = referencePeer(r.host, r.cont, end, master.Index)
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			r.conn, r.link = r.cont, end
			return err
		}
	}
	isCandidate := func(l rtnl.Link) bool { return isReferenceHostEnd(l, master.Index) }
	r.link, err = netplugin.HostEndInResult(r.host, r.cont, r.req.PrevResult, isCandidate)
	return err
}

// referencePeer returns the host end of a container's interface that the reference made. master is the index of the
// bridge whose port the host end must be, or 0. An interface with an alias has no such host end, because host-device
// writes an alias to each device that it moves into the container.
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

// isReferenceHostEnd tells whether the reference, or other software, made a host end. Ours has a mark or a group.
func isReferenceHostEnd(l rtnl.Link, master int) bool {
	return l.Kind == "veth" && l.Alias == "" && l.Group == 0 && l.Master == master
}

// findReferenceChild finds the link that the reference made: its name, its kind and perhaps the result tell.
func (r *remains) findReferenceChild(kind string) error {
	if r.cont == nil {
		return rtnl.ErrNoLink
	}
	l, err := r.cont.Link(r.req.IfName)
	if err == nil && (l.Kind != kind || l.Alias != "" || l.Group != 0 || changedMAC(r.req, l)) {
		err = rtnl.ErrNoLink
	}
	r.link = l
	return err
}
