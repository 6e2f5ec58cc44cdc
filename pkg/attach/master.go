package attach

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// MasterKeys are the configuration keys of an interface on another one.
type MasterKeys struct {
	Master          string `json:"master" help:"interface that the container's is on (that of the result before, or of the default route)"`
	LinkInContainer bool   `json:"linkInContainer" help:"the master is an interface of the container" default:"false"`
}

// findMaster finds the link that the child is to be on: the one that the key names; else the only interface of the
// result before us on the master's side; else, where that result has at most one interface, that of the default route.
func (s *Session) findMaster(c Child) (err error) {
	if c.Master == nil {
		return nil
	}
	s.masterInside = c.Master.LinkInContainer
	conn := s.MasterSide()
	name, err := c.masterName(s.PrevResult)
	switch {
	case err != nil:
	case name != "":
		s.Master, err = conn.Link(name)
		if errors.Is(err, rtnl.ErrNoLink) {
			return cni.Refuse("master", nil, fmt.Sprintf("%q: no such interface: %v", name, rtnl.ErrNoLink))
		}
	default:
		s.Master, err = defaultMaster(conn)
	}
	if err == nil {
		err = refuseLoopback(s.Master)
	}
	if err != nil {
		return err
	}
	if c.Link.MTU > s.Master.MTU {
		return cni.Refuse("mtu", c.Link.MTU,
			fmt.Sprintf("is above that of master %q: invalid MTU %d, must be [0, master MTU(%d)]", s.Master.Name,
				c.Link.MTU, s.Master.MTU))
	}
	return nil
}

// refuseLoopback refuses lo, on which the kernel makes no link. Its index is 1 in each namespace.
func refuseLoopback(master rtnl.Link) error {
	if master.Index == 1 {
		return cni.Refuse("master", nil, fmt.Sprintf("%q: is the loopback interface, which can have no interface on it",
			master.Name))
	}
	return nil
}

// MasterSide is the socket of the namespace that the master is in.
func (s *Session) MasterSide() *rtnl.Conn {
	if s.masterInside {
		return s.Cont
	}
	return s.Host
}

// masterName is the name that the key or the result before us gives; empty: neither names one. A result with several
// interfaces, not exactly one of them on the master's side, is an error, as in the reference's ipvlan: a guess, or the
// default route, could be the wrong network.
func (c Child) masterName(prev *cni.Result) (string, error) {
	if c.Master.Master != "" || prev == nil {
		return c.Master.Master, nil
	}
	inside := c.Master.LinkInContainer
	alone := inside && len(prev.Interfaces) == 1 // then it need not name its namespace
	var all, names []string
	for _, i := range prev.Interfaces {
		all = append(all, i.Name)
		if i.Name != "" && (alone || (i.Sandbox != "") == inside) {
			names = append(names, i.Name)
		}
	}
	switch {
	case len(names) == 1:
		return names[0], nil
	case len(all) > 1:
		return "", cni.Refuse("master", nil, "missing, and the result before has several interfaces: "+
			strings.Join(all, ", ")).Suggest("name one of them")
	}
	return "", nil
}

// defaultMaster is the link of the default route: IPv4's before IPv6's, of several the one
// with the lowest metric, and the first of its next hops.
func defaultMaster(conn *rtnl.Conn) (rtnl.Link, error) {
	all, err := conn.RouteCopies()
	if err != nil {
		return rtnl.Link{}, err
	}
	var best *rtnl.Route
	for _, c := range all {
		r := c.Route()
		isDefault := r.Dst.Bits() == 0 && r.Table == unix.RT_TABLE_MAIN && r.Type == unix.RTN_UNICAST && r.OutIndex != 0
		if isDefault && (best == nil || r.Dst.Addr().Is4() && best.Dst.Addr().Is6() ||
			r.Dst.Addr().Is4() == best.Dst.Addr().Is4() && r.Priority < best.Priority) {
			best = &r
		}
	}
	if best == nil {
		return rtnl.Link{}, cni.Refuse("master", nil, "missing, and no default route has an interface that it could be")
	}
	return conn.LinkByIndex(best.OutIndex)
}

// masterIndex is what links on the master are on: the kernel puts one of the same kind
// beside the master, on the same link.
func (c Child) masterIndex(master rtnl.Link) int {
	if master.Kind == c.Kind && c.Kind != "vlan" {
		return master.Peer
	}
	return master.Index
}

// holder names what takes all frames of the link, so that no macvlan or ipvlan can be on
// it; empty: nothing that can be seen from here.
func holder(conn *rtnl.Conn, l rtnl.Link) string {
	if l.Master == 0 {
		return ""
	}
	m, err := conn.LinkByIndex(l.Master)
	if err != nil || m.Kind == "vrf" {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s %q", m.Kind, m.Name))
}
