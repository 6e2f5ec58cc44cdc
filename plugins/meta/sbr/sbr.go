package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	addrs, err := needAddresses(cfg, req)
	if err != nil {
		return nil, err
	}
	s, err := frame.OpenContainer(req)
	if err != nil {
		return nil, err
	}
	if err := s.LockNetns(ctx); err != nil {
		return nil, err
	}
	if err := s.FindInterface(); err != nil {
		return nil, err
	}
	here, err := readRouting(s)
	if err != nil {
		return nil, err
	}
	r, err := newRecord(s)
	if err != nil {
		return nil, err
	}
	r.Plan = makePlan(cfg, addrs, here)
	// Before it is written: it may be there although the write failed.
	req.OnFail("remove the record", func(ctx context.Context) error { return records().Drop(ctx, req.Hash()) })
	if err := records().Put(ctx, r); err != nil {
		return nil, err
	}
	req.OnFail("restore the routes", func(context.Context) error { return undo(s.Cont, r.Plan) })
	awaitSources(ctx, s.Cont, r.Plan)
	err = apply(s.Cont, r.Plan)
	if errors.Is(err, unix.ENETDOWN) {
		err = cni.Errorf(cni.CodeEnvironment, "CNI_IFNAME %q: the interface is down, and so has no routes: %w",
			req.IfName, err)
	}
	return cfg.withGateways(req.PrevResult), err
}

// sourceWait is longer than duplicate address detection takes.
const sourceWait = 5 * time.Second

// awaitSources waits until the sources of hints are no longer tentative: the kernel
// would refuse them. What it could not wait for the kernel reports.
func awaitSources(ctx context.Context, conn *rtnl.Conn, p plan) {
	ctx, cancel := context.WithTimeout(ctx, sourceWait)
	defer cancel()
	for _, h := range p.Hints {
		if h.Src.Is6() {
			_ = conn.WaitDAD(ctx, h.OutIndex)
		}
	}
}

// needAddresses are the addresses that get a rule.
func needAddresses(cfg config, req *skel.Request) ([]address, error) {
	addrs := addressesOf(cfg, req.PrevResult, req.IfName)
	if len(addrs) == 0 {
		return nil, cni.Errorf(cni.CodeConfig, "prevResult: no address of the interface %q to route by", req.IfName)
	}
	return addrs, nil
}

// newRecord begins the attachment's record. An old one of the same interface says that
// the attachment is there already; of an interface that is gone only rules are left.
func newRecord(s *frame.Call) (record, error) {
	r := record{Attachment: s.Attachment, Netns: s.NetnsID, Link: s.ContEnd.Index}
	old, ok, err := records().Get(s.Hash())
	if err != nil || !ok || !old.Netns.Is(r.Netns) {
		return r, err
	}
	if old.Link == r.Link {
		return r, cni.Errorf(cni.CodeExists,
			"the addresses of %q have their tables already, from an earlier ADD; DEL takes them away", s.IfName)
	}
	return r, undo(s.Cont, plan{Rules: old.Plan.Rules})
}

// readRouting reads the rules and routes of the namespace.
func readRouting(s *frame.Call) (here routing, err error) {
	here.Link = s.ContEnd.Index
	if here.Rules, err = s.Cont.Rules(); err == nil {
		here.Routes, err = s.Cont.RouteCopies()
	}
	return here, err
}

// apply makes the tables before the rules that lead there, and takes routes out of the
// main table after that: there is a route from each address at any time.
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

// forEach calls do with each of a list, up to the first error. What is there already is none.
func forEach[T any](list []T, do func(T) error) error {
	for _, one := range list {
		if err := do(one); err != nil && !errors.Is(err, unix.EEXIST) {
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

// check looks for a rule of each address, for all that the record says and, where
// the reference made the tables, for their default routes. It returns each
// difference.
func check(ctx context.Context, req *skel.Request, cfg config) error {
	addrs, err := needAddresses(cfg, req)
	if err != nil {
		return err
	}
	r, ok, err := records().Get(req.Hash())
	if err != nil {
		return err
	}
	s, err := frame.OpenContainer(req)
	if err != nil {
		return err
	}
	if err := s.VerifyInterface(); err != nil {
		return err
	}
	here, err := readRouting(s)
	if err != nil {
		return err
	}
	if !ok || !r.Netns.Is(s.NetnsID) {
		r.Plan = plan{}
	}
	var errs []error
	for _, a := range addrs {
		errs = append(errs, here.checkRule(a, cfg, r.Plan))
	}
	for _, want := range slices.Concat(r.Plan.Defaults, r.Plan.Hints) {
		if !here.has(want) {
			errs = append(errs, cni.Drift("table %d: route %s: missing", want.Table, want))
		}
	}
	for _, want := range r.Plan.Copies {
		if !slices.ContainsFunc(here.Routes, want.Equal) {
			errs = append(errs, cni.Drift("table %d: route %s: missing", want.Table(), want))
		}
	}
	return errors.Join(errs...)
}

// checkRule looks for the rule of one address. Without a plan it may lead to any
// table that has the default route.
func (f routing) checkRule(a address, cfg config, p plan) error {
	inPlan := func(r rtnl.Rule) bool { return len(p.Rules) == 0 || slices.Contains(p.Rules, r) }
	i := slices.IndexFunc(f.Rules, func(r rtnl.Rule) bool {
		return r.Src == a.host() && inPlan(r) && (cfg.Table == 0 || r.Table == cfg.Table)
	})
	if i < 0 {
		return cni.Drift("rule from %s: missing", a.host())
	}
	if cfg.Table != 0 || len(p.Rules) > 0 || !a.Gateway.IsValid() {
		return nil
	}
	a.Default = cni.Route{} // whose metrics the reference loses
	want := defaultRoute(a, f.Link, f.Rules[i].Table)
	if !f.has(want) {
		return cni.Drift("table %d: route %s: missing", want.Table, want)
	}
	return nil
}

// has looks for a route that leads packets as this one does. IPv6 has no scope.
func (f routing) has(want rtnl.Route) bool {
	return slices.ContainsFunc(f.Routes, func(c rtnl.RouteCopy) bool {
		have := c.Route()
		return want.Dst == have.Dst && want.GW == have.GW && want.Src == have.Src && want.OutIndex == have.OutIndex &&
			want.Priority == have.Priority && want.Table == have.Table
	})
}

// gc removes the records of attachments that are not valid. Nothing is restored:
// their namespaces are gone, or somebody else's business.
func gc(ctx context.Context, req *skel.Request) error {
	stale := func(r record) bool { return req.Valid.Excludes(r.Attachment) }
	return records().Collect(ctx, stale, func(record) error { return nil })
}

// status looks for what would make ADD fail: a kernel without routing policy, a
// directory that cannot be written.
func status(_ context.Context, _ *skel.Request, _ config) error {
	conn, err := rtnl.Dial(nil)
	if err == nil {
		defer conn.Close()
		_, err = conn.Rules()
	}
	if err == nil {
		err = statefile.Writable(recordDir)
	}
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	return nil
}
