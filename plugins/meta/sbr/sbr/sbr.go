package sbr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	addrs, err := addressesOf(cfg, req)
	if err != nil {
		return nil, err
	}
	c, err := netplugin.OpenLocked(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := c.FindInterface(); err != nil {
		return nil, err
	}
	state, err := readRouting(c)
	if err != nil {
		return nil, err
	}
	r, err := newRecord(c)
	if err != nil {
		return nil, err
	}
	r.Plan = makePlan(cfg, addrs, state)
	req.Step("create rules and routes")
	req.OnFail("restore the routes", func(ctx context.Context) error {
		if err := restore(c.Cont, r.Plan); err != nil {
			return err // the record stays for DEL
		}
		return records().Drop(ctx, req.Hash())
	})
	if err := records().Put(ctx, r); err != nil {
		return nil, err
	}
	awaitSources(ctx, c.Cont, r.Plan)
	err = apply(c.Cont, r.Plan)
	if errors.Is(err, unix.ENETDOWN) {
		err = cni.Errorf(cni.CodeEnvironment, "CNI_IFNAME %q: the interface is down and therefore has no routes: %w",
			req.IfName, err)
	}
	return cfg.withGateways(req.PrevResult), err
}

// del reverts the changes that the record lists. Without a record, it reverts those of the reference plugin. If the
// namespace no longer exists, it only removes the record.
func del(ctx context.Context, req *skel.Request) error {
	if req.NS != nil {
		if err := restoreIn(ctx, req); err != nil {
			return err
		}
	}
	return records().Drop(ctx, req.Hash())
}

// check verifies that each address has a rule, and that every route of the record exists. If the reference plugin
// created the tables, it verifies their default routes.
func check(ctx context.Context, req *skel.Request, cfg config) error {
	addrs, err := addressesOf(cfg, req)
	if err != nil {
		return err
	}
	r, ok, err := records().Get(req.Hash())
	if err != nil {
		return err
	}
	c := &netplugin.Call{Req: req}
	if err := c.VerifyInterface(); err != nil {
		return err
	}
	state, err := readRouting(c)
	if err != nil {
		return err
	}
	if !ok || !r.Netns.Is(c.NetnsID) {
		r.Plan = plan{}
	}
	var errs []error
	for _, a := range addrs {
		errs = append(errs, state.checkRule(a, cfg, r.Plan))
	}
	for _, want := range slices.Concat(r.Plan.Defaults, r.Plan.Hints) {
		if !state.hasRoute(want) {
			errs = append(errs, cni.Drift("table %d: route %s: missing", want.Table, want))
		}
	}
	place := func(c rtnl.RouteCopy) string { return fmt.Sprintf("table %d: route %s", c.Table(), c) }
	live := map[string][]rtnl.RouteCopy{} // by place, because a plan can have 100,000 copies
	for _, route := range state.Routes {
		live[place(route)] = append(live[place(route)], route)
	}
	for _, want := range r.Plan.Copies {
		if !slices.ContainsFunc(live[place(want)], want.Equal) {
			errs = append(errs, cni.Drift("%s: missing", place(want)))
		}
	}
	return errors.Join(errs...)
}

// gc removes the records of attachments that are not valid. It does not enter their namespaces, which no longer exist
// or belong to another attachment.
func gc(ctx context.Context, req *skel.Request) error {
	stale := func(r record) bool { return req.Valid.Excludes(r.Attachment) }
	return records().Collect(ctx, stale, func(record) error { return nil })
}

// status returns an error if the kernel does not support routing rules, or if records cannot be written.
func status(context.Context, *skel.Request, config) error {
	return netplugin.Status(recordDir, func(host *rtnl.Conn) error {
		_, err := host.Rules()
		return err
	})
}

const recordDir = "/run/hawser/sbr"

func records() *statefile.Store[record] {
	return statefile.NewStore[record](recordDir, statefile.DefaultWait)
}

// record contains the plan of an ADD and the namespace that it applies to. ADD writes it before the first change; DEL
// reverts the plan, and CHECK verifies it.
type record struct {
	cni.Attachment
	NetnsPath string      `json:"netnsPath"` // CNI_NETNS; empty in records of 0.1.0
	Netns     ns.Identity `json:"netns"`
	Link      int         `json:"link"` // index of the interface
	Plan      plan        `json:"plan"`
}

func list(context.Context, *skel.Request) ([]cni.Holding, error) {
	return netplugin.Holdings(records(), func(r record) (held []cni.Holding) {
		for _, rule := range r.Plan.Rules {
			held = append(held, cni.Holding{Attachment: r.Attachment, Kind: cni.HeldRouting, Value: rule.String()})
		}
		return netplugin.WithNetns(r.NetnsPath, r.Netns, held...)
	})
}

// Plausible reports whether an ADD can have written the record. DEL deletes what the record names, so a record that an
// ADD cannot have written is not used.
func (r record) Plausible() bool {
	tables := map[uint32]bool{}
	for _, rule := range r.Plan.Rules {
		if !rule.Src.IsSingleIP() || rtnl.IsKernelTable(rule.Table) {
			return false
		}
		tables[rule.Table] = true
	}
	isForeign := func(c rtnl.RouteCopy) bool { return !tables[c.Table()] }
	isOwn := func(route rtnl.Route) bool { return route.Dst.IsValid() && route.OutIndex == r.Link }
	isOutsideMain := func(c rtnl.RouteCopy) bool { return c.Table() != unix.RT_TABLE_MAIN }
	isForeignDefault := func(d rtnl.Route) bool { return !isOwn(d) || !tables[d.Table] }
	isForeignHint := func(h rtnl.Route) bool { return !isOwn(h) || h.Table != unix.RT_TABLE_MAIN }
	return !slices.ContainsFunc(r.Plan.Copies, isForeign) &&
		!slices.ContainsFunc(r.Plan.Moved, isOutsideMain) &&
		!slices.ContainsFunc(r.Plan.Defaults, isForeignDefault) &&
		!slices.ContainsFunc(r.Plan.Hints, isForeignHint)
}

func readRouting(c *netplugin.Call) (state routing, err error) {
	state.Link = c.ContEnd.Index
	if state.Rules, err = c.Cont.Rules(); err == nil {
		state.Routes, err = c.Cont.RouteCopies()
	}
	return state, err
}

// newRecord returns a record without a plan for this attachment. An old record of an interface that no longer exists is
// replaced, and its rules are removed. An old record of this interface is an error (code 100).
func newRecord(c *netplugin.Call) (record, error) {
	r := record{Attachment: c.Req.Attachment, NetnsPath: c.Req.Netns, Netns: c.NetnsID, Link: c.ContEnd.Index}
	old, ok, err := records().Get(c.Req.Hash())
	if err != nil || !ok || !old.Netns.Is(r.Netns) {
		return r, err
	}
	if old.Link == r.Link {
		return r, cni.Errorf(cni.CodeExists,
			"interface %q: already has routing rules from an earlier ADD; call DEL first", c.Req.IfName)
	}
	return r, restore(c.Cont, plan{Rules: old.Plan.Rules})
}

const sourceWait = 5 * time.Second // exceeds the duration of duplicate address detection

// awaitSources waits until the sources of the hints are usable, because the kernel refuses tentative addresses.
func awaitSources(ctx context.Context, conn *rtnl.Conn, p plan) {
	ctx, cancel := context.WithTimeout(ctx, sourceWait)
	defer cancel()
	for _, h := range p.Hints {
		if h.Src.Is6() {
			_ = conn.WaitDAD(ctx, h.OutIndex)
		}
	}
}

// apply creates each table before its rule, and empties the main table last, so that each address always has a route.
func apply(conn *rtnl.Conn, p plan) error {
	addRoute := func(r rtnl.Route) error { return tableError(r.Table, conn.AddRoute(r)) }
	err := forEach(p.Copies, func(c rtnl.RouteCopy) error { return tableError(c.Table(), conn.AddCopy(c)) })
	if err == nil {
		err = forEach(p.Defaults, addRoute)
	}
	if err == nil {
		err = forEach(p.Rules, conn.AddRule)
	}
	if err == nil {
		err = forEach(p.Moved, conn.DelCopy)
	}
	if err == nil {
		err = forEach(p.Hints, addRoute)
	}
	return err
}

// forEach calls do for each element until an error occurs. It ignores EEXIST.
func forEach[T any](list []T, do func(T) error) error {
	for _, e := range list {
		if err := do(e); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

func tableError(table uint32, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("table %d: %w", table, err)
}

// restoreIn reverts the changes of ADD in the container's namespace.
func restoreIn(ctx context.Context, req *skel.Request) error {
	c, err := netplugin.OpenLocked(ctx, req)
	if err != nil {
		return err
	}
	r, ok, err := records().Get(req.Hash())
	if err != nil {
		return err
	}
	err = c.FindInterface()
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return err
	}
	switch {
	case !ok && err != nil:
		return nil
	case !ok:
		r.Plan, err = planOfReference(c)
		if err != nil {
			return err
		}
	case !r.Netns.Is(c.NetnsID): // CNI_NETNS is now the namespace of another container
		return nil
	case c.ContEnd.Index != r.Link:
		r.Plan = plan{Rules: r.Plan.Rules} // the kernel deleted the routes together with the interface
	}
	return restore(c.Cont, r.Plan)
}

// restore reverts apply, whether it was complete or not. It continues after an error and returns all of them.
func restore(conn *rtnl.Conn, p plan) error {
	return errors.Join(tryEach(p.Hints, conn.DelRoute), tryEach(p.Moved, conn.RestoreCopy),
		tryEach(p.Rules, conn.DelRule), tryEach(p.Defaults, conn.DelRoute), tryEach(p.Copies, conn.DelCopy))
}

// tryEach calls do for each element and joins the errors. It ignores rtnl.ErrNoLink.
func tryEach[T any](list []T, do func(T) error) error {
	var errs []error
	for _, e := range list {
		if err := do(e); !errors.Is(err, rtnl.ErrNoLink) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// checkRule returns an error if the address has no rule. Without a plan, any table with its default route will do.
func (s routing) checkRule(a address, cfg config, p plan) error {
	inPlan := func(r rtnl.Rule) bool { return len(p.Rules) == 0 || slices.Contains(p.Rules, r) }
	i := slices.IndexFunc(s.Rules, func(r rtnl.Rule) bool {
		return r.Src == a.host() && inPlan(r) && (cfg.Table == 0 || r.Table == cfg.Table)
	})
	if i < 0 {
		return cni.Drift("rule from %s: missing", a.host())
	}
	if cfg.Table != 0 || len(p.Rules) > 0 || !a.Gateway.IsValid() {
		return nil
	}
	a.Default = cni.Route{} // the reference does not copy its metrics
	want := defaultRoute(a, s.Link, s.Rules[i].Table)
	if !s.hasRoute(want) {
		return cni.Drift("table %d: route %s: missing", want.Table, want)
	}
	return nil
}

// hasRoute reports whether an equivalent route exists. It does not compare the scope, which IPv6 routes do not have.
func (s routing) hasRoute(want rtnl.Route) bool {
	return slices.ContainsFunc(s.Routes, func(c rtnl.RouteCopy) bool {
		have := c.Route()
		return want.Dst == have.Dst && want.GW == have.GW && want.Src == have.Src && want.OutIndex == have.OutIndex &&
			want.Priority == have.Priority && want.Table == have.Table
	})
}
