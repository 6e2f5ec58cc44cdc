package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const recordDir = "/run/hawser/host-device"

// record is which device an attachment has, how that was on the host, and where it is now. It
// is written before the device moves, and dropped when it is at home again, under its name.
type record struct {
	cni.Attachment
	Netns  string      `json:"netns"` // of the container; empty once only the name is left to restore
	NS     ns.Identity `json:"identity"`
	Device device      `json:"device"`
	PCI    string      `json:"pci,omitempty"`
	Link   rtnl.Link   `json:"link"`             // on the host; none of a device without interface
	Failed bool        `json:"failed,omitempty"` // to get back its settings, at home
	// KeepsIndex says that the device has its index in the container too, where no other link had it.
	KeepsIndex bool `json:"keepsIndex,omitempty"`
}

type store = statefile.Store[record]

// records are held by whoever moves a device.
func records() statefile.Records[record] { return statefile.Records[record]{Path: recordDir} }

// Valid says whether an ADD can have written the record: its file may be damaged.
func (r record) Valid() bool { return r.Link.Index == 0 || cni.ValidIfName(r.Link.Name) }

func (r record) String() string { return fmt.Sprintf("device %q", cmp.Or(r.Link.Name, r.PCI)) }

// meets tells whether the device is the one that a configuration means.
func (r record) meets(d device) bool {
	return d.Value != "" && (d == r.Device || d.Key == byName && d.Value == r.Link.Name || d.Value == r.PCI ||
		d.Key == byMAC && strings.EqualFold(d.Value, r.Link.MAC.String()))
}

// is tells whether a link is the device. Hardware has an address that nobody can change. A
// container can rename what is virtual, and change its alias or its MAC address, and several
// may have one MAC address: the VLANs of a link have.
func (r record) is(l rtnl.Link) bool {
	if l.Kind != r.Link.Kind || l.Parent != r.Link.Parent || !slices.Equal(l.PermMAC, r.Link.PermMAC) {
		return false
	}
	sameMAC, sameIndex := slices.Equal(l.MAC, r.Link.MAC), l.Index == r.Link.Index
	named := slices.Contains([]string{r.IfName, r.Link.Name, r.substitute()}, l.Name)
	return r.isHardware() || l.Alias == r.Link.Name || sameMAC && (named || sameIndex) ||
		sameIndex && l.Name == r.IfName
}

// isHardware tells a device that outlives its namespace. The VLANs of one have its address.
func (r record) isHardware() bool { return r.Link.PermMAC != nil && r.Link.Kind == "" }

// find finds the device in a namespace, under any name. The error matches rtnl.ErrNoLink when it
// is not there, or the namespace is gone: conn is nil.
func (r record) find(conn *rtnl.Conn) (rtnl.Link, error) {
	if conn == nil || r.Link.Index == 0 {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	l, err := conn.LinkByIndex(r.Link.Index)
	// A container can change neither its index, nor its kind, nor its other end or the link that it is on.
	kept := r.KeepsIndex && !r.isHardware() && l.Kind == r.Link.Kind && l.Peer == r.Link.Peer
	if err == nil && (kept || r.is(l)) || err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return l, err
	}
	links, err := conn.Links()
	if i := slices.IndexFunc(links, r.is); i >= 0 {
		return links[i], nil
	}
	return rtnl.Link{}, cmp.Or(err, rtnl.ErrNoLink)
}

// end brings the device to the host, under its name and as it was, if it is in the container or
// where the kernel put it when that ended, and drops the record. Settings that cannot be restored
// are an error once, so that the call is repeated, and then a warning. Where something else has the
// device's name the record stays, and a later call of end only renames the device.
func (r record) end(records *store, host, cont *rtnl.Conn, warn func(string, ...any)) error {
	l, err := r.bring(host, cont)
	if errors.Is(err, rtnl.ErrNoLink) {
		l, err = r.findHome(host)
	}
	if errors.Is(err, rtnl.ErrNoLink) {
		return records.Drop(r.Hash())
	}
	if err != nil {
		return err
	}
	nameErr := r.rename(host, l)
	if !r.isHome() {
		err = r.restore(host, l)
	}
	if err != nil && !r.Failed {
		r.Failed = true
		return errors.Join(fmt.Errorf("%s: %w", r, err), records.Put(r))
	}
	if err = errors.Join(nameErr, err); err != nil {
		warn("%s: came home as %q: %v", r, l.Name, err)
	}
	if nameErr == nil {
		return records.Drop(r.Hash())
	}
	r.Netns, r.NS = "", ns.Identity{}
	return records.Put(r)
}

// isHome says that the device is on the host with its settings, and only its name is missing.
func (r record) isHome() bool { return r.Netns == "" }

// bring moves the device from the container to the host. It gets its name before, so that
// nobody on the host sees another one. Where the name is taken it keeps that as its alias.
func (r record) bring(host, cont *rtnl.Conn) (l rtnl.Link, err error) {
	if l, err = r.find(cont); err != nil {
		return l, err
	}
	down := false
	if err := cont.SetLink(l.Index, rtnl.Change{Up: &down}); err != nil {
		return l, err
	}
	move := func(name, alias string) error {
		if err := cont.SetLink(l.Index, rtnl.Change{Name: name}); err != nil {
			return err
		}
		if err := cont.SetLink(l.Index, rtnl.Change{To: host, Alias: &alias}); err != nil {
			return err
		}
		l, err = host.Link(name)
		return err
	}
	err = move(r.Link.Name, r.Link.Alias)
	if errors.Is(err, unix.EEXIST) {
		err = move(r.substitute(), r.Link.Name)
	}
	return l, err
}

// substitute is the name that the kernel, too, gives to a device whose own is taken.
func (r record) substitute() string { return fmt.Sprintf("dev%d", r.Link.Index) }

// findHome finds the device on the host: under its name, the one it gets where that is taken
// or, where the kernel brought it, any.
func (r record) findHome(host *rtnl.Conn) (rtnl.Link, error) {
	for _, name := range []string{r.Link.Name, r.substitute()} {
		if l, err := host.Link(name); err == nil && r.is(l) || err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return l, err
		}
	}
	if !r.isHardware() {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	return r.find(host)
}

// rename gives the device, at home, its name and alias, where others do not have that name. Before
// Linux 6.2 it must be down for it.
func (r record) rename(host *rtnl.Conn, l rtnl.Link) error {
	if l.Name == r.Link.Name {
		return nil
	}
	if _, err := host.Link(r.Link.Name); !errors.Is(err, rtnl.ErrNoLink) {
		return cmp.Or(err, error(unix.EEXIST))
	}
	named := rtnl.Change{Name: r.Link.Name, Alias: &r.Link.Alias}
	err := host.SetLink(l.Index, named)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	down := false
	if err := host.SetLink(l.Index, rtnl.Change{Up: &down}); err != nil {
		return err
	}
	err = host.SetLink(l.Index, named)
	return errors.Join(err, host.SetLink(l.Index, rtnl.Change{Up: &l.Up}))
}

// restore gives the device, at home, the settings that it had.
func (r record) restore(host *rtnl.Conn, l rtnl.Link) error {
	ch := rtnl.Change{MTU: r.Link.MTU, TxQLen: &r.Link.TxQLen, Group: &r.Link.Group}
	if !slices.Equal(l.MAC, r.Link.MAC) {
		ch.MAC = r.Link.MAC
	}
	return errors.Join(host.SetLink(l.Index, ch), host.SetLink(l.Index, rtnl.Change{Up: &r.Link.Up}))
}
