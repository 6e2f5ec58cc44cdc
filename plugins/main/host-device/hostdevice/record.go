package hostdevice

import (
	"cmp"
	"context"
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

// record describes an attachment's device on the host, and the namespace that has it. ADD writes it before the move.
type record struct {
	cni.Attachment
	NetnsPath string      `json:"netnsPath"` // of the container; empty if only the name is left to restore
	Netns     ns.Identity `json:"netns"`
	Device    selector    `json:"device"`
	PCI       string      `json:"pci,omitempty"`
	Link      rtnl.Link   `json:"link"`             // on the host; zero if a userspace driver has the device
	Failed    bool        `json:"failed,omitempty"` // DEL could not restore all settings
	// Inside is the device's index in the container. Before the move, it is 0 if another link there has the index
	// that the device has on the host.
	Inside        int      `json:"inside,omitempty"`
	KeepsIndex    bool     `json:"keepsIndex,omitempty"` // former builds wrote it for an Inside equal to Link.Index
	DeviceNetwork *network `json:"settings,omitempty"`   // nil without the key useInterfaceNetwork
}

type store = statefile.Store[record]

// records returns the store. Calls that move a device hold its lock.
func records() *statefile.Store[record] {
	return statefile.NewStore[record](recordDir, statefile.DefaultWait)
}

// Plausible reports whether an ADD can have written the record, because its file may be damaged.
func (r record) Plausible() bool {
	return (r.Link.Index == 0 || cni.ValidIfName(r.Link.Name)) && r.DeviceNetwork.isPlausible(r.Link.Index)
}

func (r record) String() string { return fmt.Sprintf("device %q", cmp.Or(r.Link.Name, r.PCI)) }

// list lists the devices, by their names or PCI addresses on the host.
func list(context.Context, *skel.Request) ([]cni.Holding, error) {
	return netplugin.Holdings(records(), func(r record) []cni.Holding {
		return netplugin.WithNetns(r.NetnsPath, r.Netns,
			cni.Holding{Attachment: r.Attachment, Kind: cni.HeldDevice, Value: cmp.Or(r.Link.Name, r.PCI)})
	})
}

// isSelectedBy reports whether a configuration with the selector d names the device.
func (r *record) isSelectedBy(d selector) bool {
	switch {
	case d.Value == "":
		return false
	case d.Key == byName && d.Value == r.Link.Name, d.Key == byMAC && strings.EqualFold(d.Value, r.Link.MAC.String()):
		return true
	}
	return d == r.Device || d.Value == r.PCI
}

// isDevice reports whether a link is the device. The permanent address of hardware cannot change. A container can
// change the name, alias and MAC address of a virtual link, and several links may have the same MAC address, as VLANs
// do. Therefore, a virtual link is the device if it has the alias that ADD sets, the MAC address together with the
// index or one of the device's names, or the index together with the name in CNI_IFNAME.
func (r *record) isDevice(l rtnl.Link) bool {
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

// findDevice finds the device in a namespace, under any name. conn is nil if the namespace no longer exists. The error
// matches rtnl.ErrNoLink if the device is not there.
func (r *record) findDevice(conn *rtnl.Conn) (l rtnl.Link, err error) {
	if conn == nil || r.Link.Index == 0 {
		return l, rtnl.ErrNoLink
	}
	l, err = conn.LinkByIndex(cmp.Or(r.Inside, r.Link.Index))
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return l, err
	}
	// A container can create a virtual link with any alias and MAC address. It cannot change the device's index, kind,
	// parent or peer.
	isVirtual := r.Link.Kind != ""
	isIndexKnown := isVirtual && (r.Inside != 0 || r.KeepsIndex)
	// Of a vxlan or geneve in another namespace, the kernel reports the device itself as the peer.
	isOwnPeer := l.Peer == l.Index && r.Link.Peer == 0
	isKept := l.Kind == r.Link.Kind && l.Parent == r.Link.Parent && (l.Peer == r.Link.Peer || isOwnPeer) &&
		(l.Peer == 0 || l.PeerNS != -1 || r.hasNeighbor(l.Peer))
	isFound := func(l rtnl.Link) bool { return r.isDevice(l) && (!isVirtual || slices.Equal(l.MAC, r.Link.MAC)) }
	if err == nil && (isIndexKnown && isKept || isFound(l)) {
		return l, nil
	}
	if isIndexKnown {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	links, err := conn.Links()
	if i := slices.IndexFunc(links, isFound); i >= 0 {
		return links[i], nil
	}
	return rtnl.Link{}, cmp.Or(err, rtnl.ErrNoLink)
}

// hasNeighbor reports whether the link with this index in the container is the device of another attachment. Otherwise,
// the container created the link.
func (r *record) hasNeighbor(index int) bool {
	found, _ := records().Any(func(o record) bool { return o.Inside == index && o.Netns.Is(r.Netns) })
	return found
}

// moveBack moves the device to the host, restores its name, settings and network, and drops the record. If the
// container's namespace ended, the kernel has moved the device already, and cont is nil. Settings that cannot be
// restored are an error the first time, so that the runtime repeats the call, and a warning the second time. If another
// interface has the device's name, the record stays, and a later call only renames the device.
func (c call) moveBack(ctx context.Context, r *record, cont *rtnl.Conn) error {
	insideErr := r.DeviceNetwork.removeInside(cont)
	l, err := r.moveOut(c.Host, cont)
	if errors.Is(err, rtnl.ErrNoLink) {
		l, err = r.findHome(c.Host)
	}
	if errors.Is(err, rtnl.ErrNoLink) {
		return errors.Join(insideErr, c.records.Drop(ctx, r.Hash()))
	}
	if err != nil {
		return err
	}
	nameErr := r.rename(ctx, c.Host, l)
	if r.NetnsPath != "" { // otherwise only its name is missing
		err = errors.Join(insideErr, r.restore(ctx, c.Host, l))
	}
	if err != nil && !r.Failed {
		r.Failed = true
		return errors.Join(fmt.Errorf("%s: %w", r, err), c.records.Put(ctx, *r))
	}
	if err = errors.Join(nameErr, err); err != nil {
		c.Req.Warn("%s: is back on the host as %q: %v", r, l.Name, err)
	}
	if nameErr == nil {
		return c.records.Drop(ctx, r.Hash())
	}
	r.NetnsPath, r.Netns = "", ns.Identity{}
	return c.records.Put(ctx, *r)
}

// moveOut moves the device from the container to the host. It renames the device before the move, so that no program on
// the host sees its name in the container. If its own name is taken on the host, the device gets the substitute as its
// name, and its own name as its alias.
func (r *record) moveOut(host, cont *rtnl.Conn) (l rtnl.Link, err error) {
	if l, err = r.findDevice(cont); err != nil {
		return l, err
	}
	if err := cont.SetLink(l.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
		return l, err
	}
	for _, home := range []rtnl.Link{r.Link, {Name: r.substitute(), Alias: r.Link.Name}} {
		err = cont.SetLink(l.Index, rtnl.LinkChange{Name: home.Name})
		if err == nil {
			err = cont.SetLink(l.Index, rtnl.LinkChange{Netns: host, Alias: &home.Alias})
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

// substitute returns the name for a device whose own name is taken. The kernel uses it when a namespace ends.
func (r *record) substitute() string { return fmt.Sprintf("dev%d", r.Link.Index) }

// findHome finds the device on the host, under its name or the substitute. It finds hardware under any name.
func (r *record) findHome(host *rtnl.Conn) (rtnl.Link, error) {
	for _, name := range []string{r.Link.Name, r.substitute()} {
		l, err := host.Link(name)
		if err == nil && !r.isDevice(l) {
			err = rtnl.ErrNoLink
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			return l, err
		}
	}
	if r.Link.Kind != "" {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	return r.findDevice(host)
}

// rename restores the name and alias of the device on the host. The error matches EEXIST if another interface has the
// name. Before Linux 6.2 the kernel renames only a link that is down.
func (r *record) rename(ctx context.Context, host *rtnl.Conn, l rtnl.Link) error {
	if l.Name == r.Link.Name {
		return nil
	}
	if _, err := host.Link(r.Link.Name); !errors.Is(err, rtnl.ErrNoLink) {
		return cmp.Or(err, error(unix.EEXIST))
	}
	change := rtnl.LinkChange{Name: r.Link.Name, Alias: &r.Link.Alias}
	err := host.SetLink(l.Index, change)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := host.SetLink(l.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
		return err
	}
	err = host.SetLink(l.Index, change)
	return errors.Join(err, host.SetLink(l.Index, rtnl.LinkChange{Up: &l.Up}), r.restoreNetwork(ctx, host, l.Index))
}

// restore restores the settings and the network of the device on the host.
func (r *record) restore(ctx context.Context, host *rtnl.Conn, l rtnl.Link) error {
	ch := rtnl.LinkChange{MTU: r.Link.MTU, TxQLen: &r.Link.TxQLen, Group: &r.Link.Group}
	if !slices.Equal(l.MAC, r.Link.MAC) {
		ch.MAC = r.Link.MAC
	}
	return errors.Join(host.SetLink(l.Index, ch), host.SetLink(l.Index, rtnl.LinkChange{Up: &r.Link.Up}),
		r.restoreNetwork(ctx, host, l.Index))
}
