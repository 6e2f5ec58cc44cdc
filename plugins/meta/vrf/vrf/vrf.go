package vrf

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

type wireConfig struct {
	skel.LogKey

	VRFName string `json:"vrfname" help:"name of the VRF in the container; created if it does not exist" schema:"required format=ifname"`
	Table   *int64 `json:"table" help:"routing table of the VRF (the first unused one in the container)" schema:"min=1 max=4294967295 zero"`
}

type config struct {
	VRF   string
	Table uint32 // 0: the first unused one
}

func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) config {
	switch name := w.VRFName; {
	case name == "":
		problems.Add(cni.Refuse("vrfname", nil, "missing").Suggest("name the VRF, such as \"blue\""))
	case name == req.IfName:
		problems.Add(cni.Refuse("vrfname", name, "is the container's interface itself"))
	default:
		problems.Add(cni.CheckIfName(cni.CodeConfig, "vrfname", name))
	}
	if w.Table != nil && *w.Table == 0 { // the reference treats 0 as absent
		w.Table = nil
	}
	return config{VRF: w.VRFName, Table: cni.ParseTable(problems, "table", w.Table)}
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	c, err := netplugin.OpenLocked(ctx, req)
	if err != nil {
		return nil, err
	}
	links, err := c.Cont.Links()
	if err != nil {
		return nil, err
	}
	state := snapshot{Links: links}
	link := state.linkByName(req.IfName)
	if link.Index == 0 {
		return nil, netplugin.NoInterface(req)
	}
	if state.Rules, err = c.Cont.Rules(); err == nil {
		state.Routes, err = c.Cont.RouteCopies()
	}
	if err == nil {
		state.Addrs, err = c.Cont.AddrCopies(link.Index)
	}
	if err != nil {
		return nil, err
	}
	vrf, err := state.chooseVRF(cfg, link)
	if err != nil {
		return nil, err
	}
	r := record{
		Attachment: req.Attachment, NetnsPath: req.Netns, Netns: c.NetnsID, VRF: vrf.Name, CreatedVRF: vrf.Index == 0,
		Link: link.Index, Routes: state.routesToMove(link.Index), addrs: state.Addrs,
	}
	req.Step("move the interface into the VRF")
	req.OnFail("take the interface out of the VRF", func(ctx context.Context) error {
		if err := restore(ctx, c.Cont, r); err != nil {
			return err // the record stays for DEL
		}
		return records().Drop(ctx, req.Hash())
	})
	if err := records().Put(ctx, r); err != nil {
		return nil, err
	}
	if vrf.Index == 0 {
		if vrf, err = create(c.Cont, vrf); err != nil {
			// The undo reads r. It must not delete a VRF that another process has created concurrently.
			r.CreatedVRF = !errors.Is(err, unix.EEXIST)
			return nil, err
		}
	}
	return req.PrevResult, join(ctx, c.Cont, r, vrf)
}

// del reverts the ADD in the namespace of its record. Without a record, it reverts an ADD of the reference plugin.
func del(ctx context.Context, req *skel.Request) error {
	r, ok, err := records().Get(req.Hash())
	switch {
	case err != nil:
	case ok:
		err = restoreIn(ctx, &ns.Finder{Alternative: req.Netns}, r)
	case req.NS != nil:
		err = restoreReference(ctx, req)
	}
	if err != nil {
		return err
	}
	return records().Drop(ctx, req.Hash())
}

// check compares the VRF, the interface's membership and the routes of the result with what ADD left.
func check(_ context.Context, req *skel.Request, cfg config) error {
	c := &netplugin.Call{Req: req}
	if err := c.OpenCont(); err != nil {
		return err
	}
	links, err := c.Cont.Links()
	if err != nil {
		return err
	}
	state := snapshot{Links: links}
	link, vrf := state.linkByName(req.IfName), state.linkByName(cfg.VRF)
	switch {
	case link.Index == 0:
		return cni.Drift("interface %q: is missing", req.IfName)
	case vrf.Kind != "vrf":
		return cni.Drift("vrf %q: is missing", cfg.VRF)
	}
	var errs []error
	if cfg.Table != 0 && vrf.Table != cfg.Table {
		errs = append(errs, cni.Drift("vrf %q: its table is %d instead of %d", cfg.VRF, vrf.Table, cfg.Table))
	}
	if !vrf.Up {
		errs = append(errs, cni.Drift("vrf %q: is down", cfg.VRF))
	}
	if link.Master != vrf.Index {
		return errors.Join(append(errs, cni.Drift("interface %q: is not a member of vrf %q", req.IfName, cfg.VRF))...)
	}
	routes, err := c.Cont.Routes(link.Index, unix.AF_UNSPEC)
	if err != nil {
		return err
	}
	for _, want := range req.PrevResult.Routes {
		table := vrf.Table
		if !want.InMain() {
			table = *want.Table
		}
		exists := func(have rtnl.Route) bool {
			isInTable := have.Table == table || want.InMain() && have.Table == unix.RT_TABLE_MAIN // from a later plugin
			return isInTable && have.Dst == want.Dst.Masked() && (!want.GW.IsValid() || have.GW == want.GW)
		}
		if !slices.ContainsFunc(routes, exists) {
			errs = append(errs, cni.Drift("table %d: route %s: missing", table, want.Dst))
		}
	}
	return errors.Join(errs...)
}

// gc reverts the ADDs of attachments that are not valid, if their namespaces still exist, and removes their records.
func gc(ctx context.Context, req *skel.Request) error {
	stale := func(r record) bool { return req.Valid.Excludes(r.Attachment) }
	var finder ns.Finder
	return records().Collect(ctx, stale, func(r record) error { return restoreIn(ctx, &finder, r) })
}

func status(context.Context, *skel.Request, config) error {
	return netplugin.Status(recordDir, func(host *rtnl.Conn) error { return host.ProbeKind("vrf") })
}

// create creates the VRF that chooseVRF returned, and sets its alias.
func create(conn *rtnl.Conn, want rtnl.Link) (rtnl.Link, error) {
	err := conn.AddLink(rtnl.NewLink{Name: want.Name, Kind: "vrf", Table: want.Table})
	if err != nil {
		return want, err
	}
	vrf, err := conn.Link(want.Name)
	if err != nil {
		return vrf, err
	}
	// The kernel ignores an alias in the request that creates a link.
	return vrf, conn.SetLink(vrf.Index, rtnl.LinkChange{Alias: new(vrfAlias)})
}

// join makes the interface a member of the VRF and recreates its routes there. Routes with next hops through other
// interfaces are first reduced to these next hops, because the kernel would delete them as a whole.
func join(ctx context.Context, conn *rtnl.Conn, r record, vrf rtnl.Link) error {
	for _, route := range r.Routes {
		if route.Table() == unix.RT_TABLE_MAIN {
			if err := conn.KeepOtherHops(r.Link, route); err != nil {
				return err
			}
		}
	}
	if err := setMaster(ctx, conn, r, vrf.Index); err != nil {
		return err
	}
	for _, route := range r.Routes {
		if route.Table() == unix.RT_TABLE_MAIN {
			route, _ = route.WithTable(vrf.Table).HopsThrough(r.Link)
		}
		err := conn.AddCopy(route)
		if errors.Is(err, unix.EINVAL) && route.Table() != vrf.Table {
			// In another table the kernel refuses an IPv4 source address of a VRF member.
			err = conn.AddCopy(route.WithSource(netip.Addr{}))
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return cni.Errorf(cni.CodeInternal, "table %d: %w", route.Table(), err)
		}
	}
	return nil
}

const addressWait = 5 * time.Second // limits the wait for IPv6 addresses, which usually takes milliseconds

// setMaster makes the interface a member of a VRF, or with 0 removes it from its VRF. The kernel sets the interface
// down and up again: it deletes all routes except its own, and deletes IPv6 addresses or repeats duplicate address
// detection. setMaster restores r.addrs that were usable, except those that routers announce again.
func setMaster(ctx context.Context, conn *rtnl.Conn, r record, master int) error {
	if err := conn.SetLink(r.Link, rtnl.LinkChange{Master: &master}); err != nil {
		return err
	}
	current, err := conn.AddrCopies(r.Link)
	if err != nil {
		return err
	}
	var global []netip.Addr
	for _, a := range slices.Backward(r.addrs) { // the kernel lists the newest address first
		a, isValid := a.RemainingAfter(0)
		isUsable := isValid && !a.Has(unix.IFA_F_TENTATIVE) && !a.Has(unix.IFA_F_DADFAILED)
		if a.Header.Family == unix.AF_INET || a.IsAdvertised() || !isUsable {
			continue
		}
		if !a.IsLinkLocal6() {
			global = append(global, a.Prefix().Addr())
		}
		isKept := func(b rtnl.AddrCopy) bool { return b.Prefix() == a.Prefix() && !b.Has(unix.IFA_F_TENTATIVE) }
		if slices.ContainsFunc(current, isKept) {
			continue
		}
		if err := conn.DelAddr(r.Link, a.Prefix()); err != nil {
			return err
		}
		if err := conn.AddAddrCopy(r.Link, a.WithoutDAD()); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, addressWait)
	defer cancel()
	_ = conn.WaitLocal(ctx, r.Link, global...) // best effort: join reports the route whose address is missing
	return nil
}
