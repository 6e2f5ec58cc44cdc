package attach

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// MasterKeys are the configuration keys of a child that has a master.
type MasterKeys struct {
	Master          string `json:"master" help:"interface that the container's interface is on (that of the previous result, or of the default route)" schema:"format=link empty"`
	LinkInContainer bool   `json:"linkInContainer" help:"the master is an interface of the container" default:"false"`
}

// findMaster sets Master to the first of: the link that the key names; the only interface in prevResult that is on the
// master's side, host or container; the link of the default route, if prevResult has at most one interface.
func (c *Call) findMaster() error {
	if c.Child.Master == nil {
		return nil
	}
	name, err := c.Child.masterName(c.Req.PrevResult)
	if err != nil {
		return err
	}
	if name != "" {
		c.Master, err = findLink(c.masterConn(), name)
	} else {
		c.Master, err = defaultMaster(c.masterConn())
	}
	if err != nil {
		return err
	}
	return c.Child.refuseMaster(c.Host, c.Master)
}

func (c *Call) masterConn() *rtnl.Conn {
	if c.Child.isMasterInside() {
		return c.Cont
	}
	return c.Host
}

func (cfg ChildConfig) isMasterInside() bool { return cfg.Master != nil && cfg.Master.LinkInContainer }

// masterName returns the master's name in the key or in prevResult, or the empty string if neither has one. If
// prevResult has several interfaces and not exactly one on the master's side, masterName returns an error, as the
// reference's ipvlan does. Any choice, even the link of the default route, could be on the wrong network.
func (cfg ChildConfig) masterName(prev *cni.Result) (string, error) {
	if cfg.Master.Master != "" || prev == nil {
		return cfg.Master.Master, nil
	}
	ignoresSandbox := cfg.isMasterInside() && len(prev.Interfaces) == 1 // as the reference plugins do
	var all, names []string
	for _, i := range prev.Interfaces {
		all = append(all, i.Name)
		isMasterSide := (i.Sandbox != "") == cfg.isMasterInside()
		if i.Name != "" && (ignoresSandbox || isMasterSide) {
			names = append(names, i.Name)
		}
	}
	switch {
	case len(names) == 1:
		return names[0], nil
	case len(all) > 1:
		return "", cni.Refuse("master", nil, "missing, and prevResult has several interfaces: "+
			strings.Join(all, ", ")).Suggest("name one of them")
	}
	return "", nil
}

// defaultMaster returns the link of the default route: IPv4 before IPv6, the lowest metric, the first next hop.
func defaultMaster(conn *rtnl.Conn) (rtnl.Link, error) {
	routes, err := defaultRoutes(conn)
	if err != nil {
		return rtnl.Link{}, err
	}
	if len(routes) == 0 {
		return rtnl.Link{}, cni.Refuse("master", nil, "missing, and no default route has an interface to use instead")
	}
	best := slices.MinFunc(routes, func(x, y rtnl.RouteCopy) int {
		a, b := x.Route(), y.Route()
		// 0.0.0.0 is less than ::
		return cmp.Or(a.Dst.Addr().Compare(b.Dst.Addr()), cmp.Compare(a.Priority, b.Priority))
	})
	return conn.LinkByIndex(best.Route().OutIndex)
}

func findLink(conn *rtnl.Conn, master string) (rtnl.Link, error) {
	l, err := conn.Link(master)
	if errors.Is(err, rtnl.ErrNoLink) {
		err = cni.Refuse("master", nil, fmt.Sprintf("%q: no such interface: %v", master, rtnl.ErrNoLink))
	}
	return l, err
}

// refuseMaster refuses a link of another container, a bridge or VLAN gateway whose packets the child would take, a link
// with a smaller MTU than the child, and lo, on which the kernel creates no link.
func (cfg ChildConfig) refuseMaster(host *rtnl.Conn, master rtnl.Link) error {
	const lo = 1 // the index of lo in each namespace
	if master.Index == lo {
		return cni.Refuse("master", nil, fmt.Sprintf("%q: is the loopback interface, which can have no interface on it",
			master.Name))
	}
	if !cfg.isMasterInside() {
		if err := netplugin.RefuseOwned("master", master); err != nil {
			return err
		}
		if master.Master == 0 || cfg.New.Kind == vlanKind { // the kernel refuses other kinds on a port
			if err := netplugin.RefuseForeign(host, "master", master); err != nil {
				return err
			}
		}
		if err := cfg.refuseTakeover(host, master); err != nil {
			return err
		}
	}
	if cfg.Link.MTU > master.MTU {
		return cni.Refuse("mtu", cfg.Link.MTU,
			fmt.Sprintf("is above that of master %q: invalid MTU %d, must be [0, master MTU(%d)]", master.Name,
				cfg.Link.MTU, master.MTU))
	}
	return nil
}

// refuseTakeover returns code 103 if the child would take the packets of a bridge that connects containers, or of a
// VLAN gateway.
func (cfg ChildConfig) refuseTakeover(host *rtnl.Conn, master rtnl.Link) error {
	if !cfg.TakesMaster {
		return nil
	}
	if master.Kind != "bridge" {
		return netplugin.RefuseVLANGateway(host, "master", master)
	}
	ports, err := host.Ports(master.Index)
	i := slices.IndexFunc(ports, func(p rtnl.Link) bool { return p.IsPairEnd() && p.PeerNS != -1 })
	if err != nil || i < 0 {
		return err
	}
	return cni.Errorf(cni.CodeConflict, "master: %q: the bridge connects a container by port %q, and the host would "+
		"receive nothing from it; use another mode", master.Name, ports[i].Name)
}

// probeMaster returns an error if no child could be created on the configured master, if that is on the host.
func (cfg ChildConfig) probeMaster(host *rtnl.Conn) error {
	if cfg.Master == nil || cfg.Master.Master == "" || cfg.Master.LinkInContainer {
		return nil
	}
	l, err := findLink(host, cfg.Master.Master)
	if err != nil {
		return err
	}
	if upper := upperDevice(host, l); upper != "" && cfg.New.Kind != vlanKind {
		return fmt.Errorf("master: %q: is held by %s", l.Name, upper)
	}
	return cfg.refuseMaster(host, l)
}

// upperDevice returns the kind and name of the bridge or bond that receives all frames of the link. A link with such a
// device cannot have a macvlan or ipvlan. The result is empty if the link has no such device, or if it cannot be read.
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

// verifyMaster compares the link that the child is on with the configured master or, without one, the recorded master.
func (c *Call) verifyMaster(r childRecord, l rtnl.Link) (err error) {
	cfg, conn := c.Child, c.masterConn()
	if cfg.Master == nil {
		return nil
	}
	switch {
	case cfg.Master.Master != "":
		c.Master, err = conn.Link(cfg.Master.Master)
	case r.Master != 0:
		c.Master, err = conn.LinkByIndex(r.Master)
	default:
		return nil
	}
	if err != nil {
		return fmt.Errorf("master: %w", err)
	}
	want, isSameKind := c.Master.Index, c.Master.Kind == cfg.New.Kind
	// l.Peer is the link below the child: the master or, if that is also a macvlan or ipvlan, the link below it, which
	// may be in another namespace than the master.
	if isSameKind && cfg.New.Kind != vlanKind {
		want = c.Master.Peer
	}
	isWrongSide := !isSameKind && (l.PeerNS >= 0) == cfg.isMasterInside() // -1 = in the child's own namespace
	if l.Peer != want || isWrongSide {
		return fmt.Errorf("interface %q: is not on master %q (#%d) but on #%d", c.Req.IfName, c.Master.Name, want,
			l.Peer)
	}
	return nil
}
