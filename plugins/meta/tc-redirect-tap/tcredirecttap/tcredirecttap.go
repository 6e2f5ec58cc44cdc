package tcredirecttap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/tun"
)

const (
	recordDir = "/run/hawser/tc-redirect-tap"
	kind      = "tun" // the kernel's kind of a tap
)

// record is the record of an attachment. Its Objects contain the name of the tap.
type record struct {
	netplugin.NetnsRecord
	Tap int `json:"tap"` // index of the tap, because the container may rename it
}

// Plausible reports whether an ADD can have written the record.
func (r record) Plausible() bool { return r.NetnsRecord.Plausible() && r.Tap > 0 }

// records returns the store of records. ADD writes a record before the first change that outlives the call.
func records() *statefile.Store[record] {
	return statefile.NewStore[record](recordDir, statefile.DefaultWait)
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	c, err := netplugin.OpenLocked(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := c.FindInterface(); err != nil {
		return nil, err
	}
	if err := checkFree(c); err != nil {
		return nil, err
	}
	req.Step("create the tap")
	f, err := tun.Open(req.NS)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tap, err := create(c, f, cfg)
	if err != nil {
		return nil, err
	}
	r := record{c.NetnsRecord(tap.Name), tap.Index}
	req.OnFail("remove the tap", func(ctx context.Context) error {
		if err := remove(c.Cont, r); err != nil {
			return err // the record stays for DEL
		}
		return records().Drop(ctx, req.Hash())
	})
	if err := records().Put(ctx, r); err != nil {
		return nil, err
	}
	if err := tun.Keep(f); err != nil {
		return nil, err
	}
	if err := c.Cont.SetLink(tap.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
		return nil, err
	}
	req.Step("redirect packets")
	if err := connect(c.Cont, tap, c.ContEnd); err != nil {
		return nil, err
	}
	return result(req, cfg, tap, c.ContEnd), nil
}

// checkFree returns an error if the attachment has a tap already, or if the interface has an ingress qdisc.
func checkFree(c *netplugin.Call) error {
	r, ok, err := records().Get(c.Req.Hash())
	if err != nil {
		return err
	}
	if ok && r.Netns.Is(c.NetnsID) {
		tap, err := tapOf(c.Cont, r)
		if err != nil {
			return err
		}
		if tap.Index != 0 {
			return c.Req.Exists("tap " + tap.Name)
		}
	}
	q, err := c.Cont.Qdisc(c.ContEnd.Index, rtnl.Ingress)
	if err != nil || q.Kind == "" {
		return err
	}
	return cni.Errorf(cni.CodeConflict, "interface %q: has the ingress qdisc %q; remove it", c.Req.IfName, q.Kind)
}

// create creates the tap with the owner, the group and the MTU that it needs. The kernel deletes the tap when f is
// closed, until tun.Keep makes it persistent. The tap has no IFF_MULTI_QUEUE, because Firecracker does not use it. The
// program that opens the tap sets the other flags itself.
func create(c *netplugin.Call, f *os.File, cfg config) (tap rtnl.Link, err error) {
	const flags = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL
	name, err := tun.Create(f, cfg.name, flags)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		return tap, c.Req.Exists(fmt.Sprintf("tap %q", cfg.name))
	}
	if err != nil {
		return tap, fmt.Errorf("tap %q: %w", cfg.name, err)
	}
	if err := tun.SetOwner(f, cfg.uid); err != nil {
		return tap, cni.Refuse("uid", cfg.uid, err.Error())
	}
	if err := tun.SetGroup(f, cfg.gid); err != nil {
		return tap, cni.Refuse("gid", cfg.gid, err.Error())
	}
	if tap, err = c.Cont.Link(name); err != nil {
		return tap, err
	}
	return tap, c.Cont.SetLink(tap.Index, rtnl.LinkChange{MTU: c.ContEnd.MTU})
}

// connect redirects the packets that each of the two links receives to the other one.
func connect(conn *rtnl.Conn, tap, link rtnl.Link) error {
	for _, l := range [][2]rtnl.Link{{tap, link}, {link, tap}} {
		err := conn.AddIngress(l[0].Index)
		if err == nil {
			err = conn.Redirect(l[0].Index, rtnl.Received, l[1].Index)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// result returns prevResult with two more interfaces: the tap, and the interface of the virtual machine. The latter has
// the name of the tap, the container ID as its sandbox, and the MAC address and addresses of the container's interface.
func result(req *skel.Request, cfg config, tap, link rtnl.Link) *cni.Result {
	res := req.PrevResult.Clone()
	tapEntry := iface.Describe(tap)
	tapEntry.Sandbox = req.Netns
	vm := cni.Interface{Name: tap.Name, MAC: link.MAC.String(), Sandbox: req.ContainerID}
	res.Interfaces = append(res.Interfaces, tapEntry, vm)
	for _, ip := range addresses(req.PrevResult.ContainerIPs(req.IfName), cfg.first) {
		ip.Interface = new(len(res.Interfaces) - 1)
		res.IPs = append(res.IPs, ip)
	}
	return res
}

// addresses returns ips or, if first is true, only the first IPv4 address, or the first address if there is no IPv4.
func addresses(ips []cni.IP, first bool) []cni.IP {
	if !first || len(ips) == 0 {
		return ips
	}
	i := max(slices.IndexFunc(ips, func(ip cni.IP) bool { return ip.Address.Addr().Is4() }), 0)
	return ips[i : i+1]
}

// tapOf returns the tap of a record, or the zero Link.
func tapOf(conn *rtnl.Conn, r record) (rtnl.Link, error) {
	tap, err := conn.LinkByIndex(r.Tap)
	if err != nil || tap.Kind != kind {
		tap = rtnl.Link{}
	}
	return tap, netplugin.IgnoreNoLink(err)
}

// remove deletes the tap of a record. It first removes the redirection, so that the interface receives packets.
func remove(conn *rtnl.Conn, r record) error {
	tap, err := tapOf(conn, r)
	if err != nil {
		return err
	}
	q, err := conn.Qdisc(r.Link, rtnl.Ingress)
	errs := []error{netplugin.IgnoreNoLink(err)}
	if q.Kind == "ingress" {
		list, err := conn.Redirects(r.Link, rtnl.Received)
		errs = append(errs, err)
		// There is no filter if the ADD was killed, and more than one if the kernel's answer was lost and the filter
		// was added again. The target is 0 if the tap no longer exists.
		isForeign := func(r rtnl.Redirection) bool { return r.Target != tap.Index && r.Target != 0 }
		if err == nil && !slices.ContainsFunc(list, isForeign) {
			errs = append(errs, conn.DelQdisc(r.Link, rtnl.Ingress))
		}
	}
	if tap.Index != 0 {
		errs = append(errs, conn.DelLink(tap.Index))
	}
	return errors.Join(errs...)
}

// del removes the tap of the record, in the recorded namespace. Without a record, it removes a tap to which the
// interface redirects its packets and which redirects its packets to the interface.
func del(ctx context.Context, req *skel.Request) error {
	r, ok, err := records().Get(req.Hash())
	switch {
	case err != nil:
	case ok:
		err = removeInside(r, &ns.Finder{Alternative: req.Netns})
	case req.NS != nil:
		err = removeForeign(req)
	}
	if err != nil {
		return err
	}
	return records().Drop(ctx, req.Hash())
}

// removeInside calls remove in the namespace of the record, if it still exists.
func removeInside(r record, finder *ns.Finder) error {
	return r.Remove(finder, func(conn *rtnl.Conn) error { return remove(conn, r) })
}

// removeForeign removes the tap of another implementation of this plugin, which leaves no record.
func removeForeign(req *skel.Request) error {
	c := &netplugin.Call{Req: req}
	err := c.FindInterface()
	if err != nil {
		return netplugin.IgnoreNoLink(err)
	}
	tap, err := redirectTarget(c.Cont, c.ContEnd)
	if err != nil || tap.Kind != kind {
		return err
	}
	if reverse, err := redirectTarget(c.Cont, tap); err != nil || reverse.Index != c.ContEnd.Index {
		return err
	}
	return remove(c.Cont, record{c.NetnsRecord(tap.Name), tap.Index})
}

// redirectTarget returns the link to which l redirects all packets that it receives, or the zero Link.
func redirectTarget(conn *rtnl.Conn, l rtnl.Link) (rtnl.Link, error) {
	list, err := conn.Redirects(l.Index, rtnl.Received)
	if err != nil || len(list) == 0 || list[0].Target <= 0 || !list[0].All {
		return rtnl.Link{}, err
	}
	target, err := conn.LinkByIndex(list[0].Target)
	return target, netplugin.IgnoreNoLink(err)
}

// check compares the tap and both redirections with what ADD left.
func check(_ context.Context, req *skel.Request, cfg config) error {
	c := &netplugin.Call{Req: req}
	if err := c.VerifyInterface(); err != nil {
		return err
	}
	name := tapName(req)
	if name == "" {
		return cni.Refuse("prevResult.interfaces", nil, fmt.Sprintf(
			"has no interface with sandbox %q that has the name of a tap", req.ContainerID))
	}
	tap, err := c.Cont.Link(name)
	if errors.Is(err, rtnl.ErrNoLink) || err == nil && tap.Kind != kind {
		return cni.Drift("tap %q: is missing", name)
	}
	if err != nil {
		return err
	}
	var errs []error
	compare := func(what string, have, want any) {
		if have != want {
			errs = append(errs, cni.Drift("tap %q: %s is %v instead of %v", name, what, have, want))
		}
	}
	compare("up", tap.Up, true)
	compare("owner", tap.UID, cfg.uid)
	compare("group", tap.GID, cfg.gid)
	compare("MTU", tap.MTU, c.ContEnd.MTU)
	for _, l := range [][2]rtnl.Link{{tap, c.ContEnd}, {c.ContEnd, tap}} {
		target, err := redirectTarget(c.Cont, l[0])
		if err == nil && target.Index != l[1].Index {
			err = cni.Drift("interface %q: does not redirect all received packets to %q", l[0].Name, l[1].Name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tapName returns the name of the tap in prevResult, or "". It is the name of two interfaces there: the tap and the
// interface of the virtual machine, whose sandbox is the container ID.
func tapName(req *skel.Request) string {
	for _, vm := range req.PrevResult.Interfaces {
		if _, ok := req.PrevResult.ContainerInterface(vm.Name); ok && vm.Sandbox == req.ContainerID {
			return vm.Name
		}
	}
	return ""
}

// gc removes the taps of attachments that are not valid, if their namespaces still exist, and their records.
func gc(ctx context.Context, req *skel.Request) error {
	stale := func(r record) bool { return req.Valid.Excludes(r.Attachment) }
	var finder ns.Finder
	return records().Collect(ctx, stale, func(r record) error { return removeInside(r, &finder) })
}

func status(context.Context, *skel.Request, config) error {
	return netplugin.Status(recordDir, func(*rtnl.Conn) error { return tun.Probe() })
}

func list(context.Context, *skel.Request) ([]cni.Holding, error) {
	return netplugin.Holdings(records(), func(r record) []cni.Holding {
		return netplugin.WithNetns(r.NetnsPath, r.Netns,
			cni.Holding{Attachment: r.Attachment, Kind: cni.HeldLink, Value: r.Objects[0] + " type tun"})
	})
}
