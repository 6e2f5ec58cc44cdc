// Package netplugin contains the code that main plugins and chained plugins share, because both work on interfaces.
// IPAM plugins use only package skel.
//
// A Call is one call of a plugin in progress: the runtime's request, sockets in the host's namespace, the container's
// namespace or both, and the links that the plugin works on. ContEnd is the container's interface. HostEnd is the other
// end of its pair; an interface such as a macvlan has none. The sockets stay open until the call and its roll-back have
// ended, so that undos can use them.
//
// A path or a name in a request may refer to another object than during ADD. Therefore, each namespace has an identity,
// and a host end is identified by its alias, or because the kernel reports that it is connected to the container's
// namespace. Functions that search return an error that matches rtnl.ErrNoLink if the link or its namespace does not
// exist.
//
// The package also decides whether an attachment's rules may be restored (VerifyAttached), and defines the
// record of plugins that create objects in the container's namespace (NetnsRecord).
package netplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Call is a call in progress.
type Call struct {
	Req  *skel.Request
	Host *rtnl.Conn // in the host's namespace
	Cont *rtnl.Conn // in the container's namespace
	NF   *nft.Conn  // in the host's namespace

	NetnsID ns.Identity // of the container's namespace

	ContEnd rtnl.Link // the container's interface
	HostEnd rtnl.Link // its other end on the host; zero if the interface is not an end of a pair
}

// OpenHost begins a call that works on the host: it opens Host and NF.
func OpenHost(req *skel.Request) *Call {
	c := &Call{Req: req, Host: rtnl.Host(), NF: nft.New()}
	req.OnDone(func() { _ = errors.Join(c.Host.Close(), c.NF.Close()) })
	return c
}

// OpenCont opens Cont and reads NetnsID.
func (c *Call) OpenCont() error { return c.Req.NS.Do(c.openInside) }

// InContainer begins a call with Cont open, and calls work on a thread in the container's namespace.
func InContainer(req *skel.Request, work func(*Call) error) error {
	c := &Call{Req: req}
	return req.NS.Do(func() error {
		if err := c.openInside(); err != nil {
			return err
		}
		return work(c)
	})
}

// openInside implements OpenCont. The calling thread must be in the container's namespace.
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

// OpenLocked begins a call that changes the container's namespace: it opens Cont and holds the namespace's lock until
// the call ends. Other calls with OpenLocked in that namespace wait.
func OpenLocked(ctx context.Context, req *skel.Request) (*Call, error) {
	lock, err := LockNetns(ctx, req.NS)
	if err != nil {
		return nil, err
	}
	req.OnDone(func() { _ = lock.Unlock() })
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

// FindInterface finds the container's interface, ContEnd. It opens Cont unless Cont is open. It adds the interface's
// MAC address to NetnsID, because a kernel without namespace cookies can give a later namespace the same inode.
func (c *Call) FindInterface() error {
	if c.Cont == nil {
		if err := c.OpenCont(); err != nil {
			return err
		}
	}
	l, err := c.Cont.Link(c.Req.IfName)
	c.ContEnd, c.NetnsID.MAC = l, l.MAC.String()
	if errors.Is(err, rtnl.ErrNoLink) {
		return NoInterface(c.Req)
	}
	return err
}

// NoInterface returns the error (code 4) for a container without the interface CNI_IFNAME. Runtimes search for the text
// of rtnl.ErrNoLink.
func NoInterface(req *skel.Request) error {
	return cni.Errorf(cni.CodeEnvironment, "CNI_IFNAME %q: no such interface in CNI_NETNS %q: %w", req.IfName,
		req.Netns, rtnl.ErrNoLink)
}

// VerifyInterface calls FindInterface for CHECK. A missing interface is drift.
func (c *Call) VerifyInterface() error {
	err := c.FindInterface()
	if errors.Is(err, rtnl.ErrNoLink) {
		return cni.Drift("interface %q: is missing", c.Req.IfName)
	}
	return err
}

// FindHostEnd finds the container's interface and its other end, HostEnd. If the error matches rtnl.ErrNoLink, ContEnd
// is zero if the interface is missing, and set if only the host end is missing.
func (c *Call) FindHostEnd() error {
	err := c.FindInterface()
	if err == nil {
		c.HostEnd, err = c.Host.OtherEnd(c.ContEnd, c.Cont)
	}
	return err
}

// IgnoreNoLink returns nil if err matches rtnl.ErrNoLink, and err otherwise.
func IgnoreNoLink(err error) error {
	if errors.Is(err, rtnl.ErrNoLink) {
		return nil
	}
	return err
}

// Opener opens the namespace that a record names by path and identity: ns.OpenAs, or the method Open of an ns.Finder
// for calls that must find the namespace even if it lost its path.
type Opener func(path string, id ns.Identity) (*ns.NS, error)

// DialNetns opens a socket in the namespace that a record names.
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

// DialContainer opens a socket in the container's namespace for DEL: the namespace of CNI_NETNS or, if that is empty or
// no longer exists, the namespace that prevResult names for the container's interface. The author of a configuration
// may write prevResult, so a namespace in which a process runs is not used: it is a live container's. Paths below /proc
// are not used either, because a process of another container may have the process ID now.
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
	if n.HasProcess() {
		return nil, rtnl.ErrNoLink
	}
	return rtnl.Dial(n)
}

// Status returns code 50 if probe returns an error, or if ADD could not write records in dir. An empty dir means that
// the plugin has no records.
func Status(dir string, probe func(host *rtnl.Conn) error) error {
	host := rtnl.Host()
	defer host.Close()
	err := probe(host)
	if dir != "" {
		err = errors.Join(statefile.Writable(dir), err)
	}
	return Unavailable("", err)
}

// Unavailable returns code 50 with the joined faults after prefix, or nil if all faults are nil.
func Unavailable(prefix string, faults ...error) error {
	if err := errors.Join(faults...); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%s%w", prefix, err)
	}
	return nil
}
