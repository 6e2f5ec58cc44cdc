package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// CreatePair makes a pair of links, both ends in place and down: the container's
// interface, and a host end with a name derived from the attachment. An attachment
// that exists is code 100: the kernel decides who of two ADDs is first. Until
// MarkHostEnd the group of the host end tells whose it is.
func (s *Session) CreatePair(ctx context.Context, link LinkConfig) (err error) {
	pair := rtnl.NewLink{Kind: "veth", MTU: link.MTU, Group: cni.NetworkHash(s.Network),
		Peer: rtnl.Peer{Name: s.IfName, MAC: link.MAC, NS: s.NS}}
	if link.Netkit {
		pair.Kind = "netkit"
	}
	names := iface.HostNames(s.Attachment)
	for _, name := range names {
		pair.Name = name
		if err = s.Host.AddLink(pair); err == nil {
			s.HostEnd, err = s.Host.Link(name)
		}
		if err == nil {
			s.OnFail("delete the interface", func(context.Context) error { return s.Host.DelLink(s.HostEnd.Index) })
			s.ContEnd, err = s.Cont.Link(s.IfName)
			return err
		}
		if !errors.Is(err, unix.EEXIST) {
			if l, lost := s.Host.Link(name); lost == nil && frame.IsHalfMade(l, s.Network) { // only the answer was lost
				err = errors.Join(err, s.Host.DelLink(l.Index))
			}
			return err
		}
		if err := s.refuseExisting(ctx); err != nil {
			return err
		}
	}
	return cni.Errorf(cni.CodeConflict, "host interface: other links have all the names from %q to %q: %w",
		names[0], names[len(names)-1], err)
}

// endTimeout is how long the kernel may take to delete the host end of a
// container whose namespace has ended.
const endTimeout = time.Second

// refuseExisting is code 100 when the attachment exists: its interface in the
// container, or its host end. When the container's namespace has ended, the kernel
// deletes the pair a moment later: refuseExisting waits for it.
func (s *Session) refuseExisting(ctx context.Context) error {
	if err := s.RefuseTakenName(); err != nil {
		return err
	}
	host, err := frame.MarkedHostEnd(s.Host, s.Attachment)
	if errors.Is(err, rtnl.ErrNoLink) {
		return nil // the name is another link's
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := s.Host.WaitGone(ctx, host.Index); err == nil {
		return nil
	}
	return s.Exists(fmt.Sprintf("host interface %q: this attachment exists already; DEL removes it", host.Name))
}

// MarkHostEnd names the owner of the host end, makes it a port of the bridge with the
// index master (0: of none), and has the host ignore the container's advertisements.
func (s *Session) MarkHostEnd(master int) error {
	change := rtnl.LinkChange{Alias: new(s.Mark()), Group: new(uint32(0))}
	if master != 0 {
		change.Master = &master
	}
	if err := s.Host.SetLink(s.HostEnd.Index, change); err != nil {
		return err
	}
	return s.Tolerate(iface.IgnoreRouterAdverts(s.HostEnd.Name))
}

// deleteStalePairs deletes the host ends that CreatePair made for attachments of the network
// that are not valid. It reads all links.
func deleteStalePairs(host *rtnl.Conn, valid cni.Set) error {
	links, err := host.Links()
	if err != nil {
		return err
	}
	var keep []string // names that host ends of valid attachments may have without a mark
	for _, a := range valid.All() {
		keep = append(keep, iface.HostNames(a)...)
	}
	var errs []error
	for _, l := range links {
		unmarked := frame.IsHalfMade(l, valid.Network()) && !slices.Contains(keep, l.Name)
		garbage := l.IsPairEnd() && valid.Garbage(l.Alias)
		if unmarked || garbage {
			errs = append(errs, host.DelLink(l.Index))
		}
	}
	return errors.Join(errs...)
}
