package hostdevice

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const recordDir = "/run/hawser/host-device"

// record is which device an attachment has, how that was on the host, and where it is. It is written before the device
// moves.
type record struct {
	cni.Attachment
	NetnsPath string      `json:"netnsPath"` // of the container; empty once only the name is left to restore
	Netns     ns.Identity `json:"netns"`
	Device    selector    `json:"device"`
	PCI       string      `json:"pci,omitempty"`
	Link      rtnl.Link   `json:"link"`             // on the host; none of a device without interface
	Failed    bool        `json:"failed,omitempty"` // to get back its settings, at home
	// KeepsIndex says that the device has its index in the container too, where no other link had it.
	KeepsIndex bool     `json:"keepsIndex,omitempty"`
	Settings   *network `json:"settings,omitempty"` // nil without the key useInterfaceNetwork
}

// UnmarshalJSON also reads the keys of earlier versions.
func (r *record) UnmarshalJSON(data []byte) error {
	type plain record
	return json.Unmarshal(ns.CurrentKeys(data), (*plain)(r))
}

type store = statefile.Store[record]

// records are held by whoever moves a device.
func records() *statefile.Store[record] {
	return statefile.NewStore[record](recordDir, statefile.DefaultWait)
}

// Plausible says whether an ADD can have written the record: its file may be damaged.
func (r record) Plausible() bool {
	return (r.Link.Index == 0 || cni.ValidIfName(r.Link.Name)) && r.Settings.isPlausible(r.Link.Index)
}

func (r record) String() string { return fmt.Sprintf("device %q", cmp.Or(r.Link.Name, r.PCI)) }

// list lists the devices, by their names or PCI addresses on the host.
func list(context.Context, *skel.Request) ([]cni.Holding, error) {
	return netplugin.Holdings(records(), func(r record) []cni.Holding {
		return netplugin.WithNetns(r.NetnsPath, r.Netns,
			cni.Holding{Attachment: r.Attachment, Kind: cni.HeldDevice, Value: cmp.Or(r.Link.Name, r.PCI)})
	})
}

// isMeant tells whether the device is the one that a configuration selects.
func (r *record) isMeant(d selector) bool {
	switch {
	case d.Value == "":
		return false
	case d.Key == byName && d.Value == r.Link.Name, d.Key == byMAC && strings.EqualFold(d.Value, r.Link.MAC.String()):
		return true
	}
	return d == r.Device || d.Value == r.PCI
}

// isOf tells whether a link is the device. Nobody can change the address of hardware. A container can change name,
// alias and MAC address of what is virtual, and several links may have one MAC address, as VLANs do.
func (r *record) isOf(l rtnl.Link) bool {
	if l.Kind != r.Link.Kind || l.Parent != r.Link.Parent || !slices.Equal(l.PermMAC, r.Link.PermMAC) {
		return false
	}
	sameIndex := l.Index == r.Link.Index
	switch {
	case r.Link.IsHardware(), l.Alias == r.Link.Name:
		return true
	case slices.Equal(l.MAC, r.Link.MAC):
		return sameIndex || slices.Contains([]string{r.IfName, r.Link.Name, r.substitute()}, l.Name)
	}
	return sameIndex && l.Name == r.IfName
}

// find finds the device in a namespace, under any name. The error matches rtnl.ErrNoLink when there is none; conn is
// nil where the namespace is gone.
func (r *record) find(conn *rtnl.Conn) (l rtnl.Link, err error) {
	if conn == nil || r.Link.Index == 0 {
		return l, rtnl.ErrNoLink
	}
	l, err = conn.LinkByIndex(r.Link.Index)
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return l, err
	}
	// A container can change neither its index, nor its kind, nor its other end or what it is on.
	isKept := r.KeepsIndex && !r.Link.IsHardware() && l.Kind == r.Link.Kind && l.Peer == r.Link.Peer &&
		l.Parent == r.Link.Parent
	if err == nil && (isKept || r.isOf(l)) {
		return l, nil
	}
	links, err := conn.Links()
	if i := slices.IndexFunc(links, r.isOf); i >= 0 {
		return links[i], nil
	}
	return rtnl.Link{}, cmp.Or(err, rtnl.ErrNoLink)
}

// bringHome brings the device to the host, under its name and as it was, from the container or from where the kernel
// put it when that ended, and drops the record. Settings that cannot be restored are an error once, so that the call
// is repeated, and then a warning. Where something else has the device's name the record stays, and a later call only
// renames the device. cont is nil where the namespace is gone.
func (c call) bringHome(ctx context.Context, r *record, cont *rtnl.Conn) error {
	leaveErr := r.Settings.leave(cont)
	l, err := r.bring(c.Host, cont)
	if errors.Is(err, rtnl.ErrNoLink) {
		l, err = r.findHome(c.Host)
	}
	if errors.Is(err, rtnl.ErrNoLink) {
		return errors.Join(leaveErr, c.records.Drop(ctx, r.Hash()))
	}
	if err != nil {
		return err
	}
	nameErr := r.rename(ctx, c.Host, l)
	if r.NetnsPath != "" { // else only its name is missing
		err = errors.Join(leaveErr, r.restore(ctx, c.Host, l))
	}
	if err != nil && !r.Failed {
		r.Failed = true
		return errors.Join(fmt.Errorf("%s: %w", r, err), c.records.Put(ctx, *r))
	}
	if err = errors.Join(nameErr, err); err != nil {
		c.Req.Warn("%s: came home as %q: %v", r, l.Name, err)
	}
	if nameErr == nil {
		return c.records.Drop(ctx, r.Hash())
	}
	r.NetnsPath, r.Netns = "", ns.Identity{}
	return c.records.Put(ctx, *r)
}

// bring moves the device from the container to the host, and names it before, so that nobody on the host sees another
// name. Where its name is taken there, that becomes its alias.
func (r *record) bring(host, cont *rtnl.Conn) (l rtnl.Link, err error) {
	if l, err = r.find(cont); err != nil {
		return l, err
	}
	if err := cont.SetLink(l.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
		return l, err
	}
	own, other := rtnl.Link{Name: r.Link.Name, Alias: r.Link.Alias}, rtnl.Link{Name: r.substitute(), Alias: r.Link.Name}
	for _, home := range []rtnl.Link{own, other} {
		err = cont.SetLink(l.Index, rtnl.LinkChange{Name: home.Name})
		if err == nil {
			err = cont.SetLink(l.Index, rtnl.LinkChange{To: host, Alias: &home.Alias})
		}
		if err == nil {
			return host.Link(home.Name)
		}
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return l, err
}

// substitute is the name that the kernel, too, gives to a device whose own is taken.
func (r *record) substitute() string { return fmt.Sprintf("dev%d", r.Link.Index) }

// findHome finds the device on the host: under its name or the substitute, hardware under any.
func (r *record) findHome(host *rtnl.Conn) (rtnl.Link, error) {
	for _, name := range []string{r.Link.Name, r.substitute()} {
		l, err := host.Link(name)
		if err == nil && !r.isOf(l) {
			err = rtnl.ErrNoLink
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			return l, err
		}
	}
	if r.Link.Kind != "" {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	return r.find(host)
}

// rename gives the device, at home, its name and alias, unless others have that name. Before Linux 6.2 it must be down
// for it.
func (r *record) rename(ctx context.Context, host *rtnl.Conn, l rtnl.Link) error {
	if l.Name == r.Link.Name {
		return nil
	}
	if _, err := host.Link(r.Link.Name); !errors.Is(err, rtnl.ErrNoLink) {
		return cmp.Or(err, error(unix.EEXIST))
	}
	named := rtnl.LinkChange{Name: r.Link.Name, Alias: &r.Link.Alias}
	err := host.SetLink(l.Index, named)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := host.SetLink(l.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
		return err
	}
	err = host.SetLink(l.Index, named)
	return errors.Join(err, host.SetLink(l.Index, rtnl.LinkChange{Up: &l.Up}),
		r.restoreNetwork(ctx, host, l.Index))
}

// restore gives the device, at home, the settings that it had.
func (r *record) restore(ctx context.Context, host *rtnl.Conn, l rtnl.Link) error {
	ch := rtnl.LinkChange{MTU: r.Link.MTU, TxQLen: &r.Link.TxQLen, Group: &r.Link.Group}
	if !slices.Equal(l.MAC, r.Link.MAC) {
		ch.MAC = r.Link.MAC
	}
	return errors.Join(host.SetLink(l.Index, ch), host.SetLink(l.Index, rtnl.LinkChange{Up: &r.Link.Up}),
		r.restoreNetwork(ctx, host, l.Index))
}
