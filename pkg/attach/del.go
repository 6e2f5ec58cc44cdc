package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Rules removes rules of the plugin's own in DEL or GC.
type Rules func(ctx context.Context, nf *nft.Conn) error

// Del removes what ADD made, with whatever is known of it: the rules, the
// interface, the addresses. It goes on after a failure. A host end that the
// reference made must be a port of the bridge that findBridge finds.
//
// Addresses are released when the interface is gone, since nobody may be given
// one while somebody answers to it. An IPAM plugin that needs the interface is
// asked before that, when the interface has lost its addresses.
func Del(ctx context.Context, req *skel.Request, findBridge FindBridge, rules ...Rules) error {
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

	p, findErr := find(req, findBridge)
	defer p.close()
	flush := func() error {
		if findErr != nil {
			return findErr
		}
		return p.flush(req)
	}
	return errors.Join(append(errs, Release(ctx, req, flush, func() (bool, error) {
		gone, err := p.delete(findErr)
		// Closing a netfilter socket after a deletion waits for the kernel, and so
		// does deleting a link. In this order the first wait covers the second.
		return gone, errors.Join(err, nf.Close())
	}))...)
}

// Release is DEL's last part: remove takes the interface away and says whether nobody
// answers to the addresses any more, which are then released. An IPAM plugin that needs
// the interface is asked before, if flush took the addresses from it.
func Release(ctx context.Context, req *skel.Request, flush func() error, remove func() (gone bool, err error)) error {
	client := ipamOf(req)
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
		errs = append(errs, withheld(client))
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
	linkErr := collectPairs(host, req.Valid)
	return errors.Join(append(errs, nf.Close(), Collect(ctx, req, linkErr))...)
}

// Collect is GC's last part: it has IPAM release the addresses of what is not valid, unless
// linkErr says that an interface may still answer to one. It returns both errors.
func Collect(ctx context.Context, req *skel.Request, linkErr error) error {
	if req.IPAM == "" || linkErr != nil {
		return linkErr
	}
	return ipamOf(req).Run(ctx, "GC")
}

func withheld(c *ipam.Client) error {
	return fmt.Errorf("%s: not asked to release the addresses while the interface may still be there", c)
}

// pair is the attachment's pair as DEL found it: one end, and the socket by
// which it is deleted.
type pair struct {
	host *rtnl.Conn
	cont *rtnl.Conn // nil until it is needed
	conn *rtnl.Conn // one of both
	end  rtnl.Link
}

// delete deletes the pair that find found; err is find's. gone says that nobody
// answers to the addresses any more. A pair that could not be looked for counts as
// gone unless the error is transient: a repeated DEL would not find it either.
func (p *pair) delete(err error) (gone bool, _ error) {
	if errors.Is(err, rtnl.ErrNoLink) {
		return true, nil
	}
	if err != nil {
		return !cni.Transient(err), err
	}
	err = p.conn.DelLink(p.end.Index)
	return err == nil, err
}

// flush takes its addresses from the container's interface.
func (p *pair) flush(req *skel.Request) error {
	if p.conn == p.cont {
		return Flush(p.cont, p.end)
	}
	if req.NS == nil {
		return errors.New("the namespace cannot be entered")
	}
	var err error
	if p.cont, err = rtnl.Dial(req.NS); err != nil {
		return err
	}
	end, err := p.cont.LinkByIndex(p.end.Peer)
	if err == nil && (end.Peer != p.end.Index || changedMAC(req, end)) {
		err = fmt.Errorf("the namespace is another container's by now: %w", rtnl.ErrNoLink)
	}
	if err != nil {
		return err
	}
	return Flush(p.cont, end)
}

// Flush takes its addresses from a container's interface, but those that the kernel made.
func Flush(cont *rtnl.Conn, end rtnl.Link) error {
	addrs, err := cont.Addrs(end.Index)
	errs := []error{err}
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() { // which the kernel made
			errs = append(errs, cont.DelAddr(end.Index, a.Prefix))
		}
	}
	return errors.Join(errs...)
}

func (p *pair) close() { _ = errors.Join(p.host.Close(), p.cont.Close()) }
