package attach

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const childDir = "/run/hawser/links"

func childRecords() *statefile.Store[childRecord] {
	return statefile.NewStore[childRecord](childDir, statefile.DefaultWait)
}

// childRecord describes an attachment's child. It is written before the link is created, so that GC, and a DEL without
// CNI_NETNS, find the link.
type childRecord struct {
	cni.Attachment
	NetnsPath   string      `json:"netnsPath"` // CNI_NETNS
	Netns       ns.Identity `json:"netns"`
	Kind        string      `json:"kind"`
	Mode        string      `json:"mode,omitempty"` // only if all children of the master have this mode
	VLAN        int         `json:"vlan,omitempty"`
	Master      int         `json:"master,omitempty"`      // index
	InContainer bool        `json:"inContainer,omitempty"` // the master is in the container
	Link        int         `json:"link,omitempty"`        // index; 0 until the link has been created
}

func (r childRecord) Plausible() bool { return true }

func (c *Call) newChildRecord() childRecord {
	cfg := c.Child
	r := childRecord{Attachment: c.Req.Attachment, NetnsPath: c.Req.Netns, Netns: c.NetnsID, Kind: cfg.New.Kind,
		Master: c.Master.Index, InContainer: cfg.isMasterInside(), VLAN: cfg.New.VLAN}
	if cfg.SharesMode {
		r.Mode = cfg.New.Mode
	}
	return r
}

// findChild finds the child of an attachment. It searches CNI_NETNS, then the namespace of the record, even if that
// namespace has no path any more, and finally CNI_NETNS for the reference plugin's child.
func findChild(req *skel.Request, kind string) *foundLink {
	f := &foundLink{req: req}
	if req.NS != nil {
		if f.cont, f.err = rtnl.Dial(req.NS); f.err != nil {
			return f
		}
		f.conn = f.cont
	}
	f.link, f.err = childRecord{Attachment: req.Attachment, Kind: kind}.locate(f.cont)
	if !errors.Is(f.err, rtnl.ErrNoLink) {
		return f
	}
	var record childRecord
	if record, _, f.err = childRecords().Get(req.Hash()); f.err != nil {
		return f
	}
	inRecord := record.findLink(new(ns.Finder).Open) // without a record, the path is empty: rtnl.ErrNoLink
	if !errors.Is(inRecord.err, rtnl.ErrNoLink) {
		f.close()
		return inRecord
	}
	inRecord.close()
	f.err = f.findReferenceChild(kind)
	return f
}

// findLink opens the record's namespace and finds the link in it. The result's err is rtnl.ErrNoLink if the namespace
// or the link does not exist. The caller must close the result.
func (r childRecord) findLink(open netplugin.Opener) *foundLink {
	cont, err := netplugin.DialNetns(open, r.NetnsPath, r.Netns)
	f := &foundLink{cont: cont, conn: cont, err: err}
	if err == nil {
		f.link, f.err = r.locate(cont)
	}
	return f
}

// liveLink returns the link of the record. It returns rtnl.ErrNoLink if the path no longer points to the namespace, or
// the namespace has no such link.
func (r childRecord) liveLink() (rtnl.Link, error) {
	f := r.findLink(ns.OpenAs)
	f.close()
	return f.link, f.err
}

// locate finds the link in the container's namespace: by its owner, because the container may have renamed it, or by
// its index, because the container may have removed the alias. It returns rtnl.ErrNoLink if there is no such link, or
// if cont is nil because the namespace does not exist.
func (r childRecord) locate(cont *rtnl.Conn) (rtnl.Link, error) {
	if cont == nil {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	l, err := cont.Link(r.IfName)
	if r.owns(l) || netplugin.IgnoreNoLink(err) != nil {
		return l, err
	}
	links, err := cont.Links()
	i := slices.IndexFunc(links, r.owns)
	if i < 0 {
		i = slices.IndexFunc(links, func(l rtnl.Link) bool { return l.Index == r.Link && l.Kind == r.Kind })
	}
	if i >= 0 {
		return links[i], nil
	}
	return rtnl.Link{}, cmp.Or(err, fmt.Errorf("interface of %s: %w", r.Attachment, rtnl.ErrNoLink))
}

// owns reports whether the attachment owns l: by its mark or, before ADD writes the mark, by its group and name.
func (r childRecord) owns(l rtnl.Link) bool {
	if l.Kind != r.Kind {
		return false
	}
	if l.Alias != "" {
		return r.Attachment.Owns(l.Alias)
	}
	return l.Group == cni.NetworkHash(r.Network) && (l.Name == r.IfName || l.Name == temporaryName(r.Attachment))
}

// temporaryName returns the name that a link gets first if the kernel refuses its final name.
func temporaryName(a cni.Attachment) string { return iface.HostNames(a)[0] }

func (r childRecord) deleteLink(f *foundLink) error {
	if _, err := f.delete(); err != nil {
		return fmt.Errorf("interface of %s: %w", r.Attachment, err)
	}
	return nil
}

// checkRecords returns code 100 if the attachment exists, and code 103 if the master's children have another mode.
func (c *Call) checkRecords(records *statefile.Store[childRecord], r childRecord) error {
	old, _, err := records.Get(c.Req.Hash())
	if err != nil {
		return err
	}
	l, err := old.liveLink() // without a record, the path is empty: rtnl.ErrNoLink
	switch {
	case err == nil:
		return c.Req.Exists(fmt.Sprintf("interface %q in %s: this attachment exists already; DEL removes it", l.Name,
			old.NetnsPath))
	case !errors.Is(err, rtnl.ErrNoLink):
		return err
	case r.Mode == "":
		return nil
	}
	sibling, err := r.findSibling(records, func(sibling *childRecord) bool { return sibling.Mode != r.Mode })
	if err != nil || sibling == nil {
		return err
	}
	return cni.Errorf(cni.CodeConflict, "mode: %q: all interfaces on master %q must have the same mode, which is %q "+
		"(%s)", r.Mode, c.Master.Name, sibling.Mode, sibling.Attachment)
}

// vlanConflict returns code 103 with the cause err, the kernel's error for a VLAN that exists on the master. It names
// the owner of the VLAN: a link in the master's namespace or another attachment or, if neither is found, an interface
// in another namespace.
func (c *Call) vlanConflict(records *statefile.Store[childRecord], r childRecord, err error) error {
	owner := "an interface in another namespace"
	isSameVLAN := func(sibling *childRecord) bool { return sibling.VLAN == r.VLAN }
	if sibling, err := r.findSibling(records, isSameVLAN); err == nil && sibling != nil {
		owner = sibling.Attachment.String()
	}
	links, _ := c.masterConn().Links()
	for _, l := range links {
		if l.Kind == r.Kind && l.VLAN == r.VLAN && l.Peer == r.Master && l.PeerNS < 0 {
			owner = fmt.Sprintf("interface %q in its namespace", l.Name)
		}
	}
	return cni.Errorf(cni.CodeConflict, "VLAN %d of master %q: is held by %s: %w", r.VLAN, c.Master.Name, owner, err)
}

// findSibling returns the record of a live child of the same kind on the same master that matches, or nil.
func (r childRecord) findSibling(records *statefile.Store[childRecord],
	matches func(*childRecord) bool) (*childRecord, error) {
	all, err := records.All()
	for _, other := range all {
		isSameNS := !r.InContainer || other.Netns.Is(r.Netns)
		isSibling := other.Kind == r.Kind && other.Master == r.Master && other.InContainer == r.InContainer && isSameNS
		if !isSibling || other.Attachment == r.Attachment || !matches(other) {
			continue
		}
		if _, err := other.liveLink(); !errors.Is(err, rtnl.ErrNoLink) {
			return other, err
		}
	}
	return nil, err
}

func listChildren(kind string) ([]cni.Holding, error) {
	host := rtnl.Host()
	defer host.Close()
	var masters map[int]string // names by index; nil until a child has a master on the host
	var linkErr error
	all, err := netplugin.Holdings(childRecords(), func(r childRecord) []cni.Holding {
		if r.Kind != kind {
			return nil
		}
		isOnHost := r.Master != 0 && !r.InContainer
		if isOnHost && masters == nil {
			masters = map[int]string{}
			links, err := host.LinkSummaries()
			for _, l := range links {
				masters[l.Index] = l.Name
			}
			linkErr = err
		}
		h := cni.Holding{Attachment: r.Attachment, Kind: cni.HeldLink, Value: r.IfName}
		if master := masters[r.Master]; isOnHost && master != "" {
			h.Value += "@" + master
		}
		h.Value += " type " + kind
		if r.VLAN != 0 {
			h.Value += fmt.Sprintf(" id %d", r.VLAN)
		}
		return netplugin.WithNetns(r.NetnsPath, r.Netns, h)
	})
	return all, errors.Join(err, linkErr)
}
