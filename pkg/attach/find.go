package attach

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// FindBridge finds the bridge of which a host end must be a port when it has no mark,
// since the reference made it; nil: of none. An error that is not transient says that
// there is no such bridge: then only host ends with a mark are looked for.
type FindBridge func(host *rtnl.Conn) (index int, err error)

// find finds the attachment's pair: ours by its mark, one of the reference by
// what the namespace or the result says. What belongs to somebody else by now
// is not found: rtnl.ErrNoLink.
func find(req *skel.Request, findBridge FindBridge) (p pair, err error) {
	if p.host, err = rtnl.Dial(nil); err != nil {
		return p, err
	}
	p.conn = p.host
	p.end, err = frame.MarkedHostEnd(p.host, req.Attachment)
	if !errors.Is(err, rtnl.ErrNoLink) {
		return p, err
	}
	bridge := 0
	if findBridge != nil {
		if bridge, err = findBridge(p.host); cni.Transient(err) {
			return p, err
		} else if err != nil {
			return p, rtnl.ErrNoLink
		}
	}
	if req.NS != nil {
		if p.cont, err = rtnl.Dial(req.NS); err != nil {
			return p, err
		}
		// From the inside: whoever is in the container can choose names, indexes
		// and addresses, and must not be able to point at another's host end.
		end, err := p.cont.Link(req.IfName)
		if err == nil && changedMAC(req, end) {
			err = rtnl.ErrNoLink // the namespace is another container's by now
		}
		if err == nil {
			_, err = foreignPeer(p.host, end, bridge)
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			p.conn, p.end = p.cont, end
			return p, err
		}
	}
	p.end, err = frame.HostEndOfResult(p.host, req.PrevResult, func(l rtnl.Link) bool { return isForeign(l, bridge) })
	return p, err
}

// changedMAC tells whether the result knows the container's interface by another
// MAC address.
func changedMAC(req *skel.Request, end rtnl.Link) bool {
	if req.PrevResult == nil {
		return false
	}
	i, ok := req.PrevResult.ContainerInterface(req.IfName)
	return ok && i.MAC != "" && !strings.EqualFold(i.MAC, end.MAC.String())
}

// foreignPeer finds the host end of a container's interface that other software
// made. An interface with an alias is no such end: host-device writes the alias of a device that it moves in.
func foreignPeer(host *rtnl.Conn, end rtnl.Link, bridge int) (rtnl.Link, error) {
	if end.Kind != "veth" || end.Peer == 0 || end.Alias != "" {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	l, err := host.LinkByIndex(end.Peer)
	if err == nil && (l.Peer != end.Index || !isForeign(l, bridge)) {
		err = rtnl.ErrNoLink
	}
	return l, err
}

// isForeign tells whether a link is a host end that other software made. One of
// ours that has no mark yet is in a group.
func isForeign(l rtnl.Link, bridge int) bool {
	return l.Kind == "veth" && l.Alias == "" && l.Group == 0 && l.Master == bridge
}

// FindPair looks up both ends of the pair for CHECK. A host end that the reference made
// must be a port of the bridge, by its index; 0: of none.
func (s *Session) FindPair(bridge int) error {
	var err error
	if s.ContEnd, err = s.Cont.Link(s.IfName); err != nil {
		return iface.Drifted(fmt.Errorf("container: %w", err))
	}
	s.HostEnd, err = frame.MarkedHostEnd(s.Host, s.Attachment)
	if errors.Is(err, rtnl.ErrNoLink) { // made by the reference, perhaps
		s.HostEnd, err = foreignPeer(s.Host, s.ContEnd, bridge)
	}
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return cni.Drift("interface %q: has no host end", s.IfName)
	case err != nil:
		return err
	case s.HostEnd.Peer != s.ContEnd.Index:
		return cni.Drift("interface %q: is not the other end of host interface %q", s.IfName,
			s.HostEnd.Name)
	}
	return nil
}
