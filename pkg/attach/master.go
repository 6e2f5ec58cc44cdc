package attach

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
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
func (s *Session) findMaster() error {
	if s.Child.Master == nil {
		return nil
	}
	name, err := s.Child.masterName(s.PrevResult)
	if err != nil {
		return err
	}
	if name != "" {
		s.Master, err = findLink(s.MasterSide(), name)
	} else {
		s.Master, err = defaultMaster(s.MasterSide())
	}
	if err != nil {
		return err
	}
	return s.Child.refuseMaster(s.Master)
}

// masterReady is why no child could be on the configured master, if it is on the host.
func (c Child) masterReady(host *rtnl.Conn) error {
	if c.Master == nil || c.Master.Master == "" || c.Master.LinkInContainer {
		return nil
	}
	l, err := findLink(host, c.Master.Master)
	if err != nil {
		return err
	}
	if upper := upperDevice(host, l); upper != "" && c.New.Kind != vlanKind {
		return fmt.Errorf("master: %q: is held by %s", l.Name, upper)
	}
	return c.refuseMaster(l)
}

func findLink(conn *rtnl.Conn, master string) (rtnl.Link, error) {
	l, err := conn.Link(master)
	if errors.Is(err, rtnl.ErrNoLink) {
		err = cni.Refuse("master", nil, fmt.Sprintf("%q: no such interface: %v", master, rtnl.ErrNoLink))
	}
	return l, err
}

// refuseMaster refuses a master that is too small, or lo, on which the kernel makes no link.
func (c Child) refuseMaster(master rtnl.Link) error {
	const lo = 1 // the index in each namespace
	if master.Index == lo {
		return cni.Refuse("master", nil, fmt.Sprintf("%q: is the loopback interface, which can have no interface on it",
			master.Name))
	}
	if c.Link.MTU > master.MTU {
		return cni.Refuse("mtu", c.Link.MTU,
			fmt.Sprintf("is above that of master %q: invalid MTU %d, must be [0, master MTU(%d)]", master.Name,
				c.Link.MTU, master.MTU))
	}
	return nil
}

// MasterSide is the socket of the namespace that the master is in.
func (s *Session) MasterSide() *rtnl.Conn {
	if s.Child.masterInside() {
		return s.Cont
	}
	return s.Host
}

func (c Child) masterInside() bool { return c.Master != nil && c.Master.LinkInContainer }

// masterName is the name that the key or the result before us gives; empty: neither names one. A result with several
// interfaces, not exactly one of them on the master's side, is an error, as in the reference's ipvlan: a guess, or the
// default route, could be the wrong network.
func (c Child) masterName(prev *cni.Result) (string, error) {
	if c.Master.Master != "" || prev == nil {
		return c.Master.Master, nil
	}
	alone := c.masterInside() && len(prev.Interfaces) == 1 // then it need not name its namespace
	var all, names []string
	for _, i := range prev.Interfaces {
		all = append(all, i.Name)
		if rightSide := (i.Sandbox != "") == c.masterInside(); i.Name != "" && (alone || rightSide) {
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
	var defaults []rtnl.Route
	for _, c := range all {
		r := c.Route()
		if r.Dst.Bits() == 0 && r.Table == unix.RT_TABLE_MAIN && r.Type == unix.RTN_UNICAST && r.OutIndex != 0 {
			defaults = append(defaults, r)
		}
	}
	if len(defaults) == 0 {
		return rtnl.Link{}, cni.Refuse("master", nil, "missing, and no default route has an interface that it could be")
	}
	best := slices.MinFunc(defaults, func(a, b rtnl.Route) int {
		return cmp.Or(a.Dst.Addr().Compare(b.Dst.Addr()), cmp.Compare(a.Priority, b.Priority)) // IPv4 is less
	})
	return conn.LinkByIndex(best.OutIndex)
}

// lowerIndex is the index that a child of the master reports. A macvlan made on a macvlan, or an
// ipvlan on an ipvlan, is attached to that one's lower device.
func (c Child) lowerIndex(master rtnl.Link) int {
	if master.Kind == c.New.Kind && c.New.Kind != vlanKind {
		return master.Peer
	}
	return master.Index
}

// upperDevice names the bridge or bond that takes all frames of the link, so that no macvlan or ipvlan can be on
// it; empty: none that can be seen from here.
func upperDevice(conn *rtnl.Conn, l rtnl.Link) string {
	if l.Master == 0 {
		return ""
	}
	m, err := conn.LinkByIndex(l.Master)
	if err != nil || m.Kind == "vrf" {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s %q", m.Kind, m.Name))
}
