package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// delChild removes what AddChild made, as Del does.
func delChild(ctx context.Context, req *skel.Request, kind string) error {
	locks, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	cont, l, findErr := findRemains(locks, req, kind)
	defer func() { _ = cont.Close() }()
	flushIt := func() error {
		if findErr != nil {
			return findErr
		}
		return Flush(cont, l)
	}
	return Release(ctx, req, flushIt, func() (gone bool, err error) {
		if err = findErr; err == nil {
			err = cont.DelLink(l.Index)
		}
		// While a namespace that is there cannot be entered the link may be there, too.
		if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return false, fmt.Errorf("interface %q: %w", req.IfName, err)
		}
		return true, childRecords().Drop(locks, req.Hash())
	})
}

// findRemains finds the link of an attachment and opens its namespace: ours by its owner in
// the namespace that DEL was told, else in that of the record; one of the reference by its
// name, kind and MAC address.
func findRemains(ctx context.Context, req *skel.Request, kind string) (cont *rtnl.Conn, l rtnl.Link, err error) {
	err = rtnl.ErrNoLink
	if req.NS != nil {
		if cont, err = rtnl.Dial(req.NS); err != nil {
			return nil, l, err
		}
		l, err = findChild(cont, req.Attachment, kind)
	}
	if errors.Is(err, rtnl.ErrNoLink) {
		var other *rtnl.Conn
		if other, l, err = findRecorded(ctx, req.Attachment); err == nil {
			_ = cont.Close()
			return other, l, nil
		}
		_ = other.Close()
	}
	if errors.Is(err, rtnl.ErrNoLink) && req.NS != nil {
		l, err = foreignChild(cont, req, kind)
	}
	return cont, l, err
}

func findRecorded(ctx context.Context, a cni.Attachment) (*rtnl.Conn, rtnl.Link, error) {
	r, ok, err := childRecords().Get(a.Hash())
	if err == nil && !ok {
		err = rtnl.ErrNoLink
	}
	if err != nil {
		return nil, rtnl.Link{}, err
	}
	return r.find()
}

// foreignChild finds the link that the reference made: nothing but its name, its kind and
// perhaps the result tell that it is the attachment's.
func foreignChild(cont *rtnl.Conn, req *skel.Request, kind string) (rtnl.Link, error) {
	l, err := cont.Link(req.IfName)
	if err == nil && (l.Kind != kind || l.Alias != "" || l.Group != 0 || changedMAC(req, l)) {
		err = rtnl.ErrNoLink
	}
	return l, err
}

// gcChildren removes what AddChild made for attachments of the network that are not valid.
func gcChildren(ctx context.Context, req *skel.Request) error {
	locks, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	stale := func(r childRecord) bool { return req.Valid.Excludes(r.Attachment) }
	return Collect(ctx, req, childRecords().Collect(locks, stale, func(r childRecord) error {
		cont, l, err := r.find()
		if err == nil {
			err = cont.DelLink(l.Index)
		}
		_ = cont.Close()
		if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return fmt.Errorf("interface of %s: %w", r.Attachment, err)
		}
		return nil
	}))

}
