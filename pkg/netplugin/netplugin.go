// Package frame is what the calls of all network plugins have in common: the request, sockets
// in the namespaces that the plugin works in, and the links that it looks for there. A chained
// plugin works on an interface that another one made. What it needs of that interface, of its
// other end and of the container's namespace is here.
package netplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Call is a call under way. Its sockets stay open until the call and its roll-back are over.
type Call struct {
	Req  *skel.Request
	Host *rtnl.Conn // in the host's namespace
	Cont *rtnl.Conn // in the container's
	NF   *nft.Conn

	NetnsID ns.Identity // of the container's namespace, read with Cont

	ContEnd rtnl.Link // the container's interface
	HostEnd rtnl.Link // its other end, on the host; empty where the interface has no pair
}

// OpenHost begins a call that works on the host: it opens Host and NF.
func OpenHost(req *skel.Request) *Call {
	c := &Call{Req: req, Host: rtnl.Host(), NF: nft.New()}
	req.OnDone(func() { _ = errors.Join(c.Host.Close(), c.NF.Close()) })
	return c
}

// OpenCont opens Cont, and reads NetnsID.
func (c *Call) OpenCont() error { return c.Req.NS.Do(c.openInside) }

// InContainer calls work on a thread in the container's namespace, with Cont open.
func InContainer(req *skel.Request, work func(*Call) error) error {
	c := &Call{Req: req}
	return req.NS.Do(func() error {
		if err := c.openInside(); err != nil {
			return err
		}
		return work(c)
	})
}

func (c *Call) openInside() (err error) {
	if c.NetnsID, err = c.Req.NS.IdentityInside(); err == nil {
		c.Cont, err = rtnl.Dial(nil)
	}
	if err != nil {
		return fmt.Errorf("container: %w", err)
	}
	c.Req.OnDone(func() { _ = c.Cont.Close() })
	return nil
}

// Opener opens the namespace that path and id of a record name: ns.OpenAs, or a Finder's Open for calls that must find
// it wherever it is.
type Opener func(path string, id ns.Identity) (*ns.NS, error)

// DialNetns opens a socket in a namespace. The error matches rtnl.ErrNoLink where there is none.
func DialNetns(open Opener, path string, id ns.Identity) (*rtnl.Conn, error) {
	n, err := open(path, id)
	if errors.Is(err, ns.ErrNotExist) {
		return nil, rtnl.ErrNoLink
	}
	if err != nil {
		return nil, err
	}
	defer n.Close()
	return rtnl.Dial(n)
}

// OpenLocked begins a call that changes the container's namespace: it opens Cont and holds the namespace's lock until
// the call ends. Other calls with OpenLocked in that namespace wait.
func OpenLocked(ctx context.Context, req *skel.Request) (*Call, error) {
	held, err := LockNetns(ctx, req.NS)
	if err != nil {
		return nil, err
	}
	req.OnDone(func() { _ = held.Unlock() })
	c := &Call{Req: req}
	return c, c.OpenCont()
}

// netnsLock is the file with the locks of namespaces. The namespace's own file, /proc/self/ns/net, is not used, because
// a container can lock it.
const netnsLock = "/run/hawser/netns.lock"

// LockNetns locks a namespace as OpenLocked does. The caller must unlock it.
func LockNetns(ctx context.Context, n *ns.NS) (*statefile.Lock, error) {
	var st unix.Stat_t
	if err := unix.Fstat(n.FD(), &st); err != nil {
		return nil, fmt.Errorf("network namespace %q: %w", n.Path(), err)
	}
	return statefile.LockByte(ctx, netnsLock, st.Ino, n.Path()) // each namespace has its own inode
}

// FindInterface opens Cont, unless it is open, finds the container's interface, ContEnd, and notes its MAC address in
// NetnsID, which kernels without cookies need to tell namespaces apart. If there is none the error says so, and matches
// rtnl.ErrNoLink.
func (c *Call) FindInterface() error {
	if c.Cont == nil {
		if err := c.OpenCont(); err != nil {
			return err
		}
	}
	l, err := c.Cont.Link(c.Req.IfName)
	c.ContEnd, c.NetnsID.MAC = l, l.MAC.String()
	if errors.Is(err, rtnl.ErrNoLink) {
		return c.Req.NoInterface(rtnl.ErrNoLink)
	}
	return err
}

// IgnoreNoLink is err, or nil where that says that there is no such link.
func IgnoreNoLink(err error) error {
	if errors.Is(err, rtnl.ErrNoLink) {
		return nil
	}
	return err
}

// VerifyInterface is FindInterface for CHECK: that there is none is a difference.
func (c *Call) VerifyInterface() error {
	err := c.FindInterface()
	if errors.Is(err, rtnl.ErrNoLink) {
		return cni.Drift("interface %q: is gone", c.Req.IfName)
	}
	return err
}

// FindHostEnd finds the container's interface and its other end, HostEnd. The error matches
// rtnl.ErrNoLink where one of them is not there; ContEnd tells which.
func (c *Call) FindHostEnd() error {
	err := c.FindInterface()
	if err == nil {
		c.HostEnd, err = c.Host.OtherEnd(c.ContEnd, c.Cont)
	}
	return err
}

// EndingAlias is the alias of a container's interface from which DEL has removed the addresses.
const EndingAlias = "ending"

// Reasons why an attachment's rules are not restored.
var (
	ErrEnding   = errors.New("its DEL has begun")
	ErrNoRecord = errors.New("it has no record: DEL removed that, it was lost, or the reference plugin was used")
	ErrStale    = errors.New("its record is of another namespace, or has other addresses")
)

// VerifyAttached returns nil if the container's interface exists and has the addresses of prevResult, otherwise the
// reason. An interface without addresses also counts if prevResult has its MAC address, because gVisor moves the
// addresses into its own network stack. DEL also removes the addresses, but marks the interface. A failure to read is a
// reason, because restored rules must not outlive the container.
func VerifyAttached(req *skel.Request) error {
	n, err := ns.Open(req.Netns)
	if err != nil {
		return err
	}
	defer n.Close()
	cont, err := rtnl.Dial(n)
	if err != nil {
		return err
	}
	defer cont.Close()
	end, err := cont.Link(req.IfName)
	if err != nil {
		return fmt.Errorf("interface %q: %w", req.IfName, err)
	}
	live, err := cont.Addrs(end.Index)
	if err != nil {
		return err
	}
	live = slices.DeleteFunc(live, func(a rtnl.Addr) bool { return a.Prefix.Addr().IsLinkLocalUnicast() })
	i, _ := req.PrevResult.ContainerInterface(req.IfName)
	isSame := i.MAC != "" && strings.EqualFold(i.MAC, end.MAC.String())
	if len(live) == 0 && isSame && end.Alias != EndingAlias {
		return nil
	}
	for _, ip := range req.PrevResult.ContainerIPs(req.IfName) {
		isLive := func(a rtnl.Addr) bool { return a.Prefix.Addr() == ip.Address.Addr() }
		switch {
		case slices.ContainsFunc(live, isLive):
		case end.Alias == EndingAlias:
			return ErrEnding
		default:
			return fmt.Errorf("interface %q: does not have the address %s", req.IfName, ip.Address.Addr())
		}
	}
	return nil
}

// AttachedFunc returns a function that reports whether VerifyAttached succeeds for the request with a mark. It returns
// false for other marks.
func AttachedFunc(all []*skel.Request) func(mark string) bool {
	byMark := make(map[string]*skel.Request, len(all))
	for _, req := range all {
		byMark[req.Mark()] = req
	}
	return func(mark string) bool { return byMark[mark] != nil && VerifyAttached(byMark[mark]) == nil }
}

// NotRestored returns the error of a Reapply that restores nothing; nil if reason is nil.
func NotRestored(what string, reason error) error {
	if reason == nil {
		return nil
	}
	return fmt.Errorf("%s: not restored: %w; restart the container", what, reason)
}

// MarkedHostEnd finds the host end that one of our plugins made for an attachment, by its name and its owner. The
// error matches rtnl.ErrNoLink when there is none, also where a link of somebody else has the name.
func MarkedHostEnd(host *rtnl.Conn, a cni.Attachment) (rtnl.Link, error) {
	for _, name := range iface.HostNames(a) {
		l, err := host.Link(name)
		isOurs := IsUnmarkedHostEnd(l, a.Network) || l.IsPairEnd() && a.Owns(l.Alias)
		if err == nil && !isOurs {
			err = rtnl.ErrNoLink
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			return l, err
		}
	}
	return rtnl.Link{}, fmt.Errorf("host end of %s: %w", a, rtnl.ErrNoLink)
}

// RefuseOwned returns code 103 if a link of the host belongs to an attachment. key is the configuration's key that
// names the link.
func RefuseOwned(key string, l rtnl.Link) error {
	if owner, ok := cni.ParseMark(l.Alias); ok {
		return cni.Errorf(cni.CodeConflict, "%s: %q: belongs to %s", key, l.Name, owner)
	}
	return nil
}

// IsUnmarkedHostEnd tells a host end of the network whose ADD died before it was marked.
func IsUnmarkedHostEnd(l rtnl.Link, network string) bool {
	return l.IsPairEnd() && l.Alias == "" && l.Group == cni.NetworkHash(network)
}

// DialContainer opens a socket in the container's namespace for DEL: the namespace of CNI_NETNS or, if that is empty or
// gone, the namespace that prevResult names for the container's interface. Paths below /proc in prevResult are not
// used, because a process of another container may have the process ID now. The error matches rtnl.ErrNoLink if there
// is no such namespace.
func DialContainer(req *skel.Request) (*rtnl.Conn, error) {
	if req.NS != nil {
		return rtnl.Dial(req.NS)
	}
	i, _ := req.PrevResult.ContainerInterface(req.IfName)
	if strings.HasPrefix(filepath.Clean(i.Sandbox), "/proc/") {
		return nil, rtnl.ErrNoLink
	}
	n, err := ns.Open(i.Sandbox)
	if errors.Is(err, ns.ErrNotExist) || errors.Is(err, ns.ErrNotNetns) {
		return nil, rtnl.ErrNoLink
	}
	if err != nil {
		return nil, err
	}
	defer n.Close()
	return rtnl.Dial(n)
}

// HostEndInResult returns the container's host end by the name and MAC address in prev, for a container whose interface
// is gone. cont is the socket in the container's namespace. The author of a configuration may write prev, so the kernel
// must report that the link is connected to that namespace, and isCandidate must accept the link. The error matches
// rtnl.ErrNoLink if there is no such link.
func HostEndInResult(host, cont *rtnl.Conn, prev *cni.Result, isCandidate func(rtnl.Link) bool) (rtnl.Link, error) {
	if prev == nil {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	for _, i := range prev.Interfaces {
		if i.Sandbox != "" || i.MAC == "" {
			continue
		}
		l, err := host.Link(i.Name)
		isOwn := err == nil && isCandidate(l) && strings.EqualFold(i.MAC, l.MAC.String())
		if isOwn {
			isOwn, err = host.ConnectsTo(l, cont)
		}
		if err == nil && !isOwn {
			err = rtnl.ErrNoLink
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			return l, err
		}
	}
	return rtnl.Link{}, rtnl.ErrNoLink
}

// NetnsRecord is the record of what a plugin made in the container's namespace, beside the container's interface.
type NetnsRecord struct {
	cni.Attachment
	Path  string      `json:"path"` // CNI_NETNS
	Netns ns.Identity `json:"netns"`
	Link  int         `json:"link"` // index of the interface
	Made  []string    `json:"made"` // in the plugin's own words
}

// NetnsRecord is the record of this attachment, whose ContEnd was found.
func (c *Call) NetnsRecord(made ...string) NetnsRecord {
	return NetnsRecord{Attachment: c.Req.Attachment, Path: c.Req.Netns, Netns: c.NetnsID, Link: c.ContEnd.Index,
		Made: made}
}

// Plausible says whether an ADD can have written the record.
func (i NetnsRecord) Plausible() bool { return i.Link > 0 && len(i.Made) > 0 }

// Remove calls remove with a socket in the namespace, which may be gone.
func (i NetnsRecord) Remove(finder *ns.Finder, remove func(*rtnl.Conn) error) error {
	conn, err := DialNetns(finder.Open, i.Path, i.Netns)
	if err != nil {
		return IgnoreNoLink(err)
	}
	defer conn.Close()
	return remove(conn)
}

// Status is code 50 where ADD could not write records in dir, or where probe finds what would make ADD fail. A plugin
// without records has an empty dir.
func Status(dir string, probe func(host *rtnl.Conn) error) error {
	host := rtnl.Host()
	defer host.Close()
	err := probe(host)
	if dir != "" {
		err = errors.Join(statefile.Writable(dir), err)
	}
	return Unavailable("", err)
}

// Unavailable is code 50 where any of these is an error, in words that begin with prefix.
func Unavailable(prefix string, faults ...error) error {
	if err := errors.Join(faults...); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%s%w", prefix, err)
	}
	return nil
}

// WithNetns returns the holdings of a record with the container's namespace.
func WithNetns(path string, id ns.Identity, held ...cni.Holding) []cni.Holding {
	for i := range held {
		held[i].Netns, held[i].NetnsInode, held[i].NetnsCookie = path, id.Inode, id.Cookie
	}
	return held
}

// Holdings lists the holdings of all records. holdingsOf returns the holdings of one record; Holdings adds the record's
// path and time.
func Holdings[T statefile.Record](records statefile.Records[T], holdingsOf func(T) []cni.Holding) ([]cni.Holding,
	error) {
	var all []cni.Holding
	kept, err := records.List()
	for _, k := range kept {
		for _, h := range holdingsOf(k.Record) {
			h.Kept, h.Since = k.Path, k.Written
			all = append(all, h)
		}
	}
	return all, err
}
