package portmap

import (
	"encoding/json"
	"errors"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// location identifies the namespace and the host end of an attachment. If its location is gone, an attachment no longer
// owns its host ports.
type location struct {
	NetnsPath string      `json:"netnsPath"` // the path
	Netns     ns.Identity `json:"netns"`
	Link      int         `json:"link,omitempty"` // index of the host end; 0 = none
	MAC       string      `json:"mac,omitempty"`  // of the host end
}

// UnmarshalJSON also reads the layout of earlier versions, in which the keys of the identity were next to the others.
func (l *location) UnmarshalJSON(data []byte) error {
	type plain location
	err := statefile.Decode(data, (*plain)(l))
	if l.Netns == (ns.Identity{}) && err == nil {
		err = json.Unmarshal(data, &struct {
			Cookie, Device, Inode *uint64
		}{&l.Netns.Cookie, &l.Netns.Device, &l.Netns.Inode})
	}
	return err
}

// ownerState is the state of an owner's location.
type ownerState int

const (
	ownerPresent ownerState = iota
	ownerLeaving            // the namespace is gone, and the kernel is about to remove the host end
	ownerGone
)

// state returns the state of the location:
//
//	namespace at the path  host end       state
//	the owner's            any            present
//	unknown                any            present
//	none                   none recorded  present, because the path may be in another mount namespace
//	another one            none recorded  gone
//	none or another one    removed        gone
//	none or another one    exists         leaving
//
// The kernel removes a host end some time after the last process has left the namespace.
func (l location) state(host *rtnl.Conn) (ownerState, error) {
	netns, err := ns.Open(l.NetnsPath)
	if err == nil {
		id, err := netns.Identity()
		_ = netns.Close()
		if err != nil || id.Is(l.Netns) {
			return ownerPresent, err
		}
		if l.Link == 0 {
			return ownerGone, nil
		}
	} else if isMissing := errors.Is(err, ns.ErrNotExist) || errors.Is(err, ns.ErrNotNetns); !isMissing || l.Link == 0 {
		return ownerPresent, nil
	}
	end, err := host.LinkByIndex(l.Link)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return ownerGone, nil
	case err != nil:
		return ownerPresent, err
	case end.MAC.String() != l.MAC: // another link has the index now
		return ownerGone, nil
	}
	return ownerLeaving, nil
}
