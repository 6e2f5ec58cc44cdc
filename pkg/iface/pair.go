package iface

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// nameTries is how many host names an attachment may have. The second is
// used when something else has the first: four leave nothing to chance, and
// are few enough to look at all of them when the link is to be found again.
const nameTries = 4

// Pair says how to make a veth pair with one end in a container.
type Pair struct {
	Attachment cni.Attachment
	Host       *rtnl.Conn
	Cont       *rtnl.Conn       // in the container's namespace
	NS         *ns.NS           // the same namespace
	MTU        int              // bytes, of both ends; 0 = the kernel's default
	MAC        net.HardwareAddr // of the container end; nil = random
}

// Create makes the pair, both ends in place and down, the container's called
// as the attachment says and the host's by a name derived from the attachment.
// The host end is found again by FindHostEnd; the caller marks it with
// MarkChange. An attachment that exists is code 100.
func (p Pair) Create(ctx context.Context) (host, cont rtnl.Link, err error) {
	for try := range nameTries {
		name := hostName(p.Attachment, try)
		host, err = p.Host.AddVeth(rtnl.Veth{
			Name: name, MTU: p.MTU,
			// Says whose the link is until it has its alias, which cannot be given
			// when a link is made.
			Group: cni.NetworkHash(p.Attachment.Network),
			Peer:  rtnl.Peer{Name: p.Attachment.IfName, MAC: p.MAC, NS: p.NS},
		})
		if err == nil {
			if cont, err = p.Cont.Link(p.Attachment.IfName); err != nil {
				err = errors.Join(err, p.Host.DelLink(host.Index))
			}
			return host, cont, err
		}
		if !errors.Is(err, unix.EEXIST) {
			return host, cont, p.revoke(name, err)
		}
		if err := p.refuseExisting(ctx); err != nil {
			return host, cont, err
		}
	}
	return host, cont, cni.Errorf(cni.CodeConflict, "host interface: other links have all the names from %q to %q: %w",
		hostName(p.Attachment, 0), hostName(p.Attachment, nameTries-1), err)
}

// revoke removes the pair where only the answer to its request was lost.
func (p Pair) revoke(name string, err error) error {
	if l, lost := p.Host.Link(name); lost == nil && l.Kind == "veth" && isHalfMade(l, p.Attachment.Network) {
		err = errors.Join(err, p.Host.DelLink(l.Index))
	}
	return err
}

// endPatience is how long the kernel may take to delete the host end of a
// container whose namespace has ended.
const endPatience = time.Second

// refuseExisting is code 100 when the attachment exists: its interface in the
// container, or its host end. The container end of that is in another namespace,
// which may have ended: the kernel deletes the pair a moment later, and does not
// tell before as long as it keeps closed sockets of the namespace. So
// refuseExisting waits whether the host end goes.
func (p Pair) refuseExisting(ctx context.Context) error {
	if _, err := p.Cont.Link(p.Attachment.IfName); !errors.Is(err, rtnl.ErrNoLink) {
		if err != nil {
			return err
		}
		return cni.Errorf(cni.CodeExists, "interface %q: exists already in the container (%s)", p.Attachment.IfName,
			p.Attachment)
	}
	host, err := FindHostEnd(p.Host, p.Attachment)
	if errors.Is(err, rtnl.ErrNoLink) {
		return nil // the name is another link's
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	if err := p.Host.WaitGone(ctx, host.Index); err == nil {
		return nil
	}
	return cni.Errorf(cni.CodeExists, "host interface %q: this attachment exists already (%s); DEL removes it",
		host.Name, p.Attachment)
}

// MarkChange returns the change that names the owner of a host end.
func MarkChange(a cni.Attachment) rtnl.Change {
	mark, group := a.Mark(), uint32(0)
	return rtnl.Change{Alias: &mark, Group: &group}
}

// FindHostEnd finds the host end of an attachment that Create made, by its
// name and its owner. It returns rtnl.ErrNoLink when there is none, also where a
// link of somebody else has the name.
func FindHostEnd(host *rtnl.Conn, a cni.Attachment) (rtnl.Link, error) {
	links, err := host.LinksNamed(HostNames(a)...)
	if err != nil {
		return rtnl.Link{}, err
	}
	for _, l := range links {
		if l.Kind == "veth" && (a.Owns(l.Alias) || isHalfMade(l, a.Network)) {
			return l, nil
		}
	}
	return rtnl.Link{}, fmt.Errorf("host end of %s: %w", a, rtnl.ErrNoLink)
}

// Collect deletes the host ends that Create made for attachments of the network
// that are not valid. It reads all links.
func Collect(host *rtnl.Conn, valid cni.Set) error {
	links, err := host.Links()
	if err != nil {
		return err
	}
	var keep []string // names that host ends of valid attachments may have without a mark
	for _, a := range valid.All() {
		keep = append(keep, HostNames(a)...)
	}
	var errs []error
	for _, l := range links {
		left := isHalfMade(l, valid.Network()) && !slices.Contains(keep, l.Name)
		if l.Kind == "veth" && (valid.Garbage(l.Alias) || left) {
			errs = append(errs, host.DelLink(l.Index))
		}
	}
	return errors.Join(errs...)
}

// isHalfMade tells a link of the network whose ADD died before it could mark
// it.
func isHalfMade(l rtnl.Link, network string) bool {
	return l.Alias == "" && l.Group == cni.NetworkHash(network)
}

// HostNames returns the names that Create may give to the host end of a, in
// the order in which it tries them.
func HostNames(a cni.Attachment) []string {
	names := make([]string, nameTries)
	for try := range names {
		names[try] = hostName(a, try)
	}
	return names
}

// hostName is the host end's name at the n-th try: 8 hex digits of the owner.
func hostName(a cni.Attachment, n int) string {
	if n > 0 {
		a.IfName += fmt.Sprintf(" %d", n) // a blank, which no interface has in its name
	}
	return "veth" + a.Hash()[:8]
}

// Describe makes a link an entry of a result, without sandbox.
func Describe(l rtnl.Link) cni.Interface {
	return cni.Interface{Name: l.Name, MAC: l.MAC.String(), MTU: l.MTU}
}
