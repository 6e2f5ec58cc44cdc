package attach

import (
	"errors"

	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findReference finds the pair that the reference made: by the interface in the namespace, else
// by the host end that the result names. Of a plugin with a bridge the host end is its port.
func (r *remains) findReference(bridge string) (err error) {
	var master rtnl.Link
	if bridge != "" {
		if master, err = r.host.Link(bridge); err != nil {
			return err
		}
	}
	if r.req.NS != nil {
		if r.cont, err = rtnl.Dial(r.req.NS); err != nil {
			return err
		}
		// From the inside: whoever is in the container can choose names, indexes
		// and addresses, and must not be able to point at another's host end.
		end, err := r.cont.Link(r.req.IfName)
		if err == nil && changedMAC(r.req, end) {
			err = rtnl.ErrNoLink // the namespace is another container's by now
		}
		if err == nil {
			_, err = referencePeer(r.host, end, master.Index)
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			r.conn, r.link = r.cont, end
			return err
		}
	}
	canBe := func(l rtnl.Link) bool { return isReferenceHostEnd(l, master.Index) }
	r.link, err = frame.HostEndOfResult(r.host, r.req.PrevResult, canBe)
	return err
}

// referencePeer finds the host end of a container's interface that the reference made; its master
// is the one with that index, 0 for none. An interface with an alias has no such end:
// host-device writes the alias of a device that it moves in.
func referencePeer(host *rtnl.Conn, end rtnl.Link, master int) (rtnl.Link, error) {
	if end.Kind != "veth" || end.Peer == 0 || end.Alias != "" {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	l, err := host.LinkByIndex(end.Peer)
	if err == nil && (l.Peer != end.Index || !isReferenceHostEnd(l, master)) {
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
