package attach

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Rules removes rules of the plugin's own in DEL or GC.
type Rules func(ctx context.Context, nf *nft.Conn) error

// Del removes what ADD made, with whatever is known of it: the rules, the interface, the
// addresses. It goes on after a failure. bridge is the name of the configured bridge, empty
// for a plugin without one: a host end that the reference made must be a port of it.
func Del(ctx context.Context, req *skel.Request, bridge string, rules ...Rules) error {
	nf := nft.New()
	locks, cancel := skel.WithTwoThirds(ctx) // for steps that wait for locks: the others need time, too
	defer cancel()
	var errs []error
	for _, remove := range rules {
		errs = append(errs, remove(locks, nf))
	}
	errs = append(errs, masq.Del(locks, nf, masq.Config{
		Attachment: req.Attachment, Addrs: cni.Addresses(req.PrevResult.ContainerIPs(req.IfName)), Warn: req.Warn,
	}))
	p := findPair(req, bridge)
	defer p.close()
	return errors.Join(append(errs, DelInterface(ctx, req, p.flush, func() (bool, error) {
		gone, err := p.delete()
		// Closing a netfilter socket after a deletion waits for the kernel, and so
		// does deleting a link. In this order the first wait covers the second.
		return gone, errors.Join(err, nf.Close())
	}))...)
}

// DelInterface deletes the container's interface by remove, and then has the IPAM plugin release the
// addresses, if remove says that the interface is gone: nobody may be given an address that somebody
// answers to. An IPAM plugin that needs the interface comes first, if flush took the addresses away.
func DelInterface(ctx context.Context, req *skel.Request, flush func() error, remove func() (bool, error)) error {
	client := &ipam.Client{Request: req}
	var errs []error
	released := req.IPAM != "" && client.NeedsInterface() && flush() == nil
	if released {
		most, cancel := skel.WithTwoThirds(ctx) // of what is left: the interface comes after it
		errs = append(errs, client.Run(most, "DEL"))
		cancel()
	}
	gone, err := remove()
	errs = append(errs, err)
	switch {
	case released || req.IPAM == "":
	case gone:
		errs = append(errs, client.Run(ctx, "DEL"))
	default:
		errs = append(errs, errInUse(client))
	}
	return errors.Join(errs...)
}

// GC removes what attachments of the network left that are not valid.
func GC(ctx context.Context, req *skel.Request, rules ...Rules) error {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return err
	}
	defer host.Close()
	nf := nft.New()
	locks, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	var errs []error
	for _, remove := range rules {
		errs = append(errs, remove(locks, nf))
	}
	errs = append(errs, masq.GC(locks, nf, req.Network, req.Valid))
	linkErr := deleteStalePairs(host, req.Valid)
	return errors.Join(append(errs, nf.Close(), GCAddresses(ctx, req, linkErr))...)
}

// GCAddresses has the IPAM plugin release the addresses of attachments that are not valid, unless
// linkErr says that an interface may still answer to one. It returns both errors.
func GCAddresses(ctx context.Context, req *skel.Request, linkErr error) error {
	if req.IPAM == "" || linkErr != nil {
		return linkErr
	}
	return (&ipam.Client{Request: req}).Run(ctx, "GC")
}

func errInUse(c *ipam.Client) error {
	return fmt.Errorf("%s: not asked to release the addresses while the interface may still be there", c)
}

// remains are what DEL found of an attachment's interface.
type remains struct {
	req  *skel.Request
	host *rtnl.Conn // nil for a child
	cont *rtnl.Conn // nil until it is needed
	conn *rtnl.Conn // one of both: it deletes the link
	link rtnl.Link  // an end of the pair, or the child
	err  error      // why nothing was found; rtnl.ErrNoLink = there is none, or it is somebody else's by now
}

// findPair finds the attachment's pair: ours by its mark, else the reference's.
func findPair(req *skel.Request, bridge string) *remains {
	p := &remains{req: req}
	if p.host, p.err = rtnl.Dial(nil); p.err != nil {
		return p
	}
	p.conn = p.host
	p.link, p.err = frame.MarkedHostEnd(p.host, req.Attachment)
	if errors.Is(p.err, rtnl.ErrNoLink) {
		p.err = p.findReference(bridge)
	}
	return p
}

// delete deletes the link. gone is true when nobody answers to the addresses any more. A link that
// could not be looked for is gone unless the error is transient: no DEL will ever find it.
func (r *remains) delete() (gone bool, err error) {
	if errors.Is(r.err, rtnl.ErrNoLink) {
		return true, nil
	}
	if r.err != nil {
		return !cni.Transient(r.err), r.err
	}
	err = r.conn.DelLink(r.link.Index)
	return err == nil, err
}

// flush takes its addresses from the container's interface.
func (r *remains) flush() error {
	if r.err != nil {
		return r.err
	}
	if r.conn == r.cont {
		return Flush(r.cont, r.link)
	}
	if r.req.NS == nil {
		return errors.New("the namespace cannot be entered")
	}
	var err error
	if r.cont, err = rtnl.Dial(r.req.NS); err != nil {
		return err
	}
	end, err := r.cont.LinkByIndex(r.link.Peer)
	if err != nil {
		return err
	}
	if end.Peer != r.link.Index || changedMAC(r.req, end) {
		return fmt.Errorf("the namespace is another container's by now: %w", rtnl.ErrNoLink)
	}
	return Flush(r.cont, end)
}

func (r *remains) close() { _ = errors.Join(r.host.Close(), r.cont.Close()) }

// changedMAC tells whether the result knows the container's interface by another
// MAC address.
func changedMAC(req *skel.Request, end rtnl.Link) bool {
	i, ok := req.PrevResult.ContainerInterface(req.IfName)
	return ok && i.MAC != "" && !strings.EqualFold(i.MAC, end.MAC.String())
}

// Flush takes its addresses from a container's interface, but the link-local ones, which the
// kernel made.
func Flush(cont *rtnl.Conn, end rtnl.Link) error {
	addrs, err := cont.Addrs(end.Index)
	errs := []error{err}
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			errs = append(errs, cont.DelAddr(end.Index, a.Prefix))
		}
	}
	return errors.Join(errs...)
}
