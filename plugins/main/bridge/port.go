package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// setUpPort makes the host end a port of the bridge and brings it up last, so that
// nothing passes before every restriction is in place.
func (p *port) setUpPort(ctx context.Context) error {
	if err := p.MarkHostEnd(p.bridge.Index); err != nil {
		return err
	}
	want := p.cfg.Port
	if want.Hairpin || want.Isolated { // a new port is neither
		flags := rtnl.Port{Hairpin: want.Hairpin, Isolated: want.Isolated}
		if err := p.Host.SetPort(p.HostEnd.Index, flags); err != nil {
			return err
		}
	}
	if want.Filtering {
		if err := setVLANs(p.Host, p.HostEnd.Index, p.bridge.DefaultPVID, want); err != nil {
			return p.cfg.unsupportedVLANs(err)
		}
	}
	if p.cfg.SpoofCheck {
		p.OnFail("remove the MAC spoof check", func(ctx context.Context) error {
			return deleteSpoofCheck(ctx, p.NF, p.Attachment)
		})
		if err := p.spoofCheck().add(ctx, p.NF); err != nil {
			return err
		}
	}
	return p.Host.SetLink(p.HostEnd.Index, rtnl.Change{Up: new(true)})
}

func (p *port) spoofCheck() spoofCheck {
	return spoofCheck{Attachment: p.Attachment, Port: p.HostEnd.Name, MAC: p.ContEnd.MAC}
}

// setVLANs gives a new port its VLANs, and takes from it the one that every
// new port of the bridge is given by the kernel. A port without VLANs would
// carry nothing: it keeps that one.
func setVLANs(host *rtnl.Conn, index int, defaultPVID uint16, p portConfig) error {
	vlans := p.vlans()
	if len(vlans) == 0 {
		return nil
	}
	if !p.KeepDefault && defaultPVID != 0 {
		wanted := func(v rtnl.VLAN) bool { return v.ID == defaultPVID }
		if !slices.ContainsFunc(vlans, wanted) {
			if err := host.DelVLAN(index, defaultPVID); err != nil {
				return err
			}
		}
	}
	return host.AddVLANs(index, vlans)
}

// vlans lists what the port carries. A trunk without a VLAN of its own has
// VLAN 1 untagged.
func (p portConfig) vlans() []rtnl.VLAN {
	var out []rtnl.VLAN
	native := p.VLAN
	if native == 0 && len(p.Trunk) > 0 {
		native = 1
	}
	if native != 0 {
		out = append(out, rtnl.VLAN{ID: native, PVID: true, Untagged: true})
	}
	for _, id := range p.Trunk {
		if id != native {
			out = append(out, rtnl.VLAN{ID: id})
		}
	}
	return out
}

// verifyPort compares the port with what setUpPort made of it.
func (p *port) verifyPort() []error {
	errs := p.verifyMember(p.HostEnd, p.cfg.Port)
	if p.HostEnd.Master != p.bridge.Index {
		return errs
	}
	have, err := p.Host.Port(p.HostEnd.Index)
	if err != nil {
		return append(errs, err)
	}
	want := p.cfg.Port
	if p.cfg.Link.MTU != 0 && p.HostEnd.MTU != p.cfg.Link.MTU {
		errs = append(errs, p.drift(p.HostEnd, "MTU is %d, not %d", p.HostEnd.MTU, p.cfg.Link.MTU))
	}
	if have.Hairpin != want.Hairpin {
		errs = append(errs, p.drift(p.HostEnd, "hairpin is %t, not %t", have.Hairpin, want.Hairpin))
	}
	if want.Isolated && !have.Isolated { // the other way round it may be a firewall's
		errs = append(errs, p.drift(p.HostEnd, "is not isolated"))
	}
	return errs
}

func (p *port) drift(end rtnl.Link, format string, args ...any) error {
	return cni.Errorf(cni.CodeDrift, "port %q of bridge %q: %s", end.Name, p.cfg.Bridge, fmt.Sprintf(format, args...))
}

// verifyMember compares what the host end has in common with the port of a
// VLAN's gateway: the bridge, the state, and the VLANs that setVLANs gave it.
func (p *port) verifyMember(end rtnl.Link, cfg portConfig) (errs []error) {
	if end.Master != p.bridge.Index {
		return []error{p.drift(end, "is no port of the bridge")}
	}
	if !end.Up {
		errs = append(errs, p.drift(end, "is down"))
	}
	want := cfg.vlans()
	if len(want) == 0 {
		return errs
	}
	have, err := p.Host.VLANs(end.Index)
	if err != nil {
		return append(errs, err)
	}
	for _, v := range want {
		if !slices.Contains(have, v) {
			errs = append(errs, p.drift(end, "vlan %d is missing (pvid, untagged: %t)", v.ID, v.PVID))
		}
	}
	for _, v := range have {
		if !cfg.KeepDefault && !slices.ContainsFunc(want, func(w rtnl.VLAN) bool { return w.ID == v.ID }) {
			errs = append(errs, p.drift(end, "vlan %d is there and should not be", v.ID))
		}
	}
	return errs
}
