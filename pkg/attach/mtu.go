package attach

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// Smallest and largest MTU of a container's interface, in bytes: those of a veth.
const mtuMin, mtuMax = 68, 65535

// parse checks the keys; auto is that of LinkConfig.
func (k MTUKeys) parse(problems *cni.Problems) (mtu int, auto *string) {
	word, err := cni.ParseEither("mtu", k.MTU, &mtu, "auto")
	problems.Add(err)
	if mtu != 0 && (mtu < mtuMin || mtu > mtuMax) {
		problems.Add(cni.Refuse("mtu", mtu, fmt.Sprintf("is not between %d and %d", mtuMin, mtuMax)).
			Suggest("leave it out for the kernel's own"))
	}
	switch {
	case word != "":
		auto = &k.MTUFrom
	case k.MTUFrom != "":
		problems.Add(cni.Refuse("mtuFrom", k.MTUFrom, "means nothing without \"mtu\": \"auto\"").
			Suggest(`write "mtu": "auto", or leave it out`))
	}
	if k.MTUFrom != "" {
		problems.Add(cni.CheckIfName(cni.CodeConfig, "mtuFrom", k.MTUFrom))
	}
	return mtu, auto
}

// SettleMTU finds the MTU that "auto" stands for. That no link says it is code 7.
func (l *LinkConfig) SettleMTU(host *rtnl.Conn) error {
	if l.Auto == nil {
		return nil
	}
	links, err := mtuLinks(host, *l.Auto)
	if err != nil {
		return err
	}
	l.MTU = mtuMax
	for _, uplink := range links {
		l.MTU = min(l.MTU, uplink.MTU)
	}
	return nil
}

// mtuLinks are the links that an MTU is taken from: that of the name or, without one, those of the default routes.
func mtuLinks(host *rtnl.Conn, name string) (all []rtnl.Link, err error) {
	if name != "" {
		l, err := host.Link(name)
		if errors.Is(err, rtnl.ErrNoLink) {
			err = cni.Refuse("mtuFrom", name, fmt.Sprintf("is no interface of the host: %v", rtnl.ErrNoLink))
		}
		return []rtnl.Link{l}, err
	}
	routes, err := defaultRoutes(host)
	for _, r := range routes {
		for _, index := range r.Links() {
			l, err := host.LinkByIndex(index)
			if err != nil {
				return nil, err
			}
			all = append(all, l)
		}
	}
	if err == nil && len(all) == 0 {
		err = cni.Refuse("mtu", "auto", "finds no default route of the host that leads to an interface").
			Suggest(`name the interface in "mtuFrom", or write the MTU as a number`)
	}
	return all, err
}

// defaultRoutes are those of the main table by which packets leave.
func defaultRoutes(conn *rtnl.Conn) (found []rtnl.RouteCopy, err error) {
	all, err := conn.RouteCopies()
	for _, c := range all {
		r := c.Route()
		if r.Dst.Bits() == 0 && r.Table == unix.RT_TABLE_MAIN && r.Type == unix.RTN_UNICAST && r.OutIndex != 0 {
			found = append(found, c)
		}
	}
	return found, err
}

// settleMTU is SettleMTU for a child, which carries no more than its master. A VLAN on a link of MACsec carries less,
// since its tag is encrypted with the rest.
func (s *Call) settleMTU() error {
	link, master := &s.Child.Link, s.Master
	if err := link.SettleMTU(s.Host); err != nil || link.Auto == nil || master.Index == 0 {
		return err
	}
	const tag = 4
	if s.Child.New.Kind == vlanKind && master.Kind == "macsec" {
		master.MTU -= tag
	}
	link.MTU = min(link.MTU, master.MTU)
	return nil
}

// ExpectMTU has CHECK expect the MTU that settle finds for "auto" now, and nothing else than ADD reported where no link
// says one.
func (s *Call) ExpectMTU(l *LinkConfig, settle func() error) error {
	if l.Auto == nil {
		return nil
	}
	if err := settle(); err != nil {
		if cni.AsError(err).Code == cni.CodeConfig {
			return nil
		}
		return err
	}
	s.Req.PrevResult = s.Req.PrevResult.Clone()
	for i := range s.Req.PrevResult.Interfaces {
		own := &s.Req.PrevResult.Interfaces[i]
		if own.Sandbox != "" && own.Name == s.Req.IfName || own.Sandbox == "" && own.Name == s.HostEnd.Name {
			own.MTU = l.MTU
		}
	}
	return nil
}
