package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// call is one call under way: the sockets that it uses.
type call struct {
	*skel.Request
	host *rtnl.Conn
	nf   *nft.Conn
}

func add(ctx context.Context, req *skel.Request, cfg config) (_ *cni.Result, err error) {
	c, err := dial(req)
	if err != nil {
		return nil, err
	}
	r, err := c.newRecord(cfg)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Policy != open && r.Bridge == "":
		return nil, cni.Refuse("ingressPolicy", string(r.Policy),
			fmt.Sprintf("needs a bridge, and interface %q is connected to none", c.IfName))
	case r.Policy == open && len(r.Addrs) == 0:
		return req.PrevResult, nil
	}
	s, err := openStore(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := c.replace(ctx, s, r); err != nil {
		return nil, err
	}
	c.OnFail("remove the firewall rules", func(ctx context.Context) error { return c.dismiss(ctx, false) })
	if err := c.keepBit(s, r); err != nil {
		return nil, err
	}
	r.Backend = c.choose(ctx, cfg)
	err = c.apply(ctx, s, r)
	if cfg.backend == auto && errors.Is(err, nft.ErrUnsupported) {
		r.Backend = iptables
		err = c.apply(ctx, s, r)
	}
	return req.PrevResult, err
}

// keepBit gives the record the bit of the fwmark that the host's containers have: no configuration takes another
// one from all forwarded packets while they live.
func (c *call) keepBit(s *store, r *record) error {
	bit := r.bit()
	_, err := s.Any(func(o record) bool {
		if o.Backend == nftables {
			bit = o.bit()
		}
		return o.Backend == nftables
	})
	if bit != r.bit() {
		c.Warn("markAcceptBit: %d is not used while containers live that have %d", r.bit(), bit)
		r.Bit = &bit
	}
	return err
}

func del(ctx context.Context, req *skel.Request) error {
	c, err := dial(req)
	if err != nil {
		return err
	}
	return c.dismiss(ctx, true)
}

func check(ctx context.Context, req *skel.Request, cfg config) error {
	c, err := dial(req)
	if err != nil {
		return err
	}
	want, err := c.newRecord(cfg)
	if err != nil || len(want.Addrs) == 0 && want.Policy == open {
		return err
	}
	return c.verify(ctx, want)
}

// gc removes what attachments of the network left that are not valid, and the policies of bridges that nobody is on.
// Other rules of the reference have no owner and stay.
func gc(ctx context.Context, req *skel.Request) (err error) {
	c, err := dial(req)
	if err != nil {
		return err
	}
	s, err := openExistingStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	all, err := s.All()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range all {
		if c.Valid.Excludes(r.Attachment) {
			errs = append(errs, c.remove(ctx, s, r))
		}
	}
	return errors.Join(append(errs, nft.IfSupported(elements().Sweep(ctx, c.nf, c.Valid.Garbage)),
		nft.IfSupported(c.sweepPolicies(ctx)), c.sweepIPTables(ctx), c.retire(ctx, s))...)
}

// status looks for what would make ADD fail.
func status(ctx context.Context, req *skel.Request, cfg config) error {
	c, err := dial(req)
	if err == nil {
		err = statefile.Writable(recordDir)
	}
	if err == nil {
		err = c.ready(ctx, cfg)
	}
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "firewall rules: %w", err)
	}
	return nil
}

// ready says why the backend cannot be used.
func (c *call) ready(ctx context.Context, cfg config) error {
	switch cfg.backend {
	case firewalld:
		return firewalldRuns(ctx)
	case auto, nftables:
		err := c.nf.Probe(layout(cfg.bit))
		if err == nil {
			return c.warnOfDrops(cfg.bit)
		}
		if cfg.backend == nftables || !errors.Is(err, nft.ErrUnsupported) {
			return err
		}
	}
	if missing := ipt.Installed(nft.IPv6); missing != nil {
		c.Warn("backend iptables: nothing for containers with an IPv6 address: %v", missing)
	}
	return ipt.Installed(nft.IPv4)
}

// dial opens the sockets, which are open until the call is over and a failed ADD is rolled back.
func dial(req *skel.Request) (*call, error) {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return nil, err
	}
	c := &call{Request: req, host: host, nf: nft.New()}
	req.OnDone(func() { _ = errors.Join(c.host.Close(), c.nf.Close()) })
	return c, nil
}

// newRecord makes the attachment's record, with the backend as configured. It looks for the bridge where that
// matters: for a policy, and where a bridge has one that this ADD may end; and for the MAC address where that tells
// namespaces apart.
func (c *call) newRecord(cfg config) (*record, error) {
	r := &record{Attachment: c.Attachment, Path: c.Netns, Backend: cfg.backend,
		Addrs: addressesOf(c.PrevResult, c.IfName), AdminChain: cfg.adminChain, Zone: cfg.zone,
		Published: cfg.published, Bit: &cfg.bit, Policy: cfg.policy}
	var err error
	if r.Netns, err = c.NS.Identity(); err != nil {
		return nil, err
	}
	policed, err := c.nf.Elements(table, policedSet)
	if err := nft.IfSupported(err); err != nil {
		return nil, err
	}
	needsBridge := r.Policy != open || len(policed) > 0 || cfg.backend == iptables
	if !needsBridge && r.Netns.Cookie != 0 {
		return r, nil
	}
	cont, err := rtnl.Dial(c.NS)
	if err != nil {
		return nil, err
	}
	defer cont.Close()
	link, err := cont.Link(c.IfName)
	if errors.Is(err, rtnl.ErrNoLink) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	r.Netns.MAC = link.MAC.String()
	if needsBridge {
		err = c.findBridge(r, link)
	}
	return r, err
}

// replace removes what an attachment of this name has that lived in another namespace, or whose rules the reference's
// DEL took away, since that leaves our record. One that is alive is code 100.
func (c *call) replace(ctx context.Context, s *store, r *record) error {
	old, ok, err := s.Get(r.Hash())
	switch {
	case err != nil || !ok:
		return err
	case old.Netns.Is(r.Netns) && (old.Backend != iptables || c.checkIPTables(ctx, &old) == nil):
		return cni.Errorf(cni.CodeExists, "firewall: this attachment has its rules already (%s); DEL removes them",
			r.Attachment)
	}
	return c.remove(ctx, s, &old)
}

// choose decides on the backend.
func (c *call) choose(ctx context.Context, cfg config) backend {
	if cfg.backend != auto {
		return cfg.backend
	}
	err := firewalldRuns(ctx)
	if err == nil {
		return firewalld
	}
	if !errors.Is(err, errNoFirewalld) {
		c.Warn("backend nftables, since nobody can tell whether firewalld runs: %v", err)
	}
	return nftables
}

// apply makes the rules in the record's backend. From the writing of the record on DEL knows what there may be.
func (c *call) apply(ctx context.Context, s *store, r *record) error {
	var families []nft.Family
	if r.Backend == iptables { // before the record is written: DEL keeps it where a program is missing
		var err error
		if families, err = c.prepareIPTables(ctx, r); err != nil {
			return fmt.Errorf("firewall with iptables: %w", err)
		}
	}
	if err := s.Put(*r); err != nil {
		return err
	}
	p, err := c.settle(s, r)
	if err == nil && r.SetFlag {
		err = c.isolate(r, true)
	}
	if err != nil {
		return err
	}
	if r.Backend == iptables {
		return changeIPTables(ctx, families, func(e *edit, f nft.Family) { e.whole(r, f, p) })
	}
	if r.Backend == nftables || r.Bridge != "" { // beside firewalld the policy is in nftables, too
		if err := c.addNFTables(ctx, r, p); err != nil {
			return err
		}
	}
	if r.Backend == firewalld {
		return addFirewalld(ctx, r)
	}
	return nil
}

// dismiss removes whatever the attachment has in any backend, and with reference also what the reference made for it.
func (c *call) dismiss(ctx context.Context, reference bool) (err error) {
	s, err := openExistingStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r, ok, err := s.Get(c.Hash())
	if err != nil {
		return err
	}
	if ok {
		err = c.remove(ctx, s, &r)
	} else {
		err = errors.Join(nft.IfSupported(elements().Sweep(ctx, c.nf, c.Owns)),
			s.Drop(c.Hash())) // what a killed ADD left of it
	}
	if reference {
		err = errors.Join(err, c.delReference(ctx, s, &r))
	}
	if r.Backend != iptables {
		err = errors.Join(err, c.retire(ctx, s))
	}
	return err
}

// remove removes an attachment's rules, and then its record. The record stays for a later DEL or GC when a program is
// missing, or firewalld gives no answer.
func (c *call) remove(ctx context.Context, s *store, r *record) (err error) {
	if r.SetFlag {
		err = c.isolate(r, false)
	}
	if r.Backend == iptables {
		err = errors.Join(err, c.delIPTables(ctx, s, r))
	} else {
		err = errors.Join(err, nft.IfSupported(c.delNFTables(ctx, s, r)))
	}
	var asked error // of firewalld, which may answer later
	if r.Backend == firewalld {
		asked = delFirewalld(ctx, s, r)
	}
	switch {
	case ipt.NotInstalled(err), err == nil && asked != nil:
		c.Warn("firewall rules of %s: %v", r.Attachment, errors.Join(err, asked))
		return nil
	case err != nil:
		return fmt.Errorf("firewall rules of %s: %w", r.Attachment, err)
	}
	return s.Drop(r.Hash())
}

// verify compares the record with what is wanted, and the rules with the record.
func (c *call) verify(ctx context.Context, want *record) error {
	old, ok, err := records().Get(want.Hash())
	if err != nil {
		return err
	}
	r := &old
	if !ok { // the reference made it, perhaps
		return c.checkReference(ctx, want)
	}
	if !slices.Equal(r.Addrs, want.Addrs) && c.checkReference(ctx, want) == nil {
		return nil // its DEL, which leaves our record, and its ADD followed ours
	}
	var errs []error
	same := func(key string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			errs = append(errs, drift("%s: changed since ADD from %v to %v", key, a, b))
		}
	}
	same("ingressPolicy", r.Policy, want.Policy)
	same("iptablesAdminChainName", r.AdminChain, want.AdminChain)
	same("acceptPublished", r.Published, want.Published)
	same("prevResult: the container's addresses", r.Addrs, want.Addrs)
	if r.Policy != open {
		same("the container's bridge", r.Bridge, want.Bridge)
		errs = append(errs, c.checkFlag(r))
	}
	switch r.Backend {
	case iptables:
		return errors.Join(append(errs, c.checkIPTables(ctx, r))...)
	case firewalld:
		same("firewalldZone", r.Zone, want.Zone)
		errs = append(errs, checkFirewalld(ctx, r))
		if r.Policy == open {
			return errors.Join(errs...)
		}
	}
	return errors.Join(append(errs, c.checkNFTables(ctx, r))...)
}

// checkReference looks for what the reference makes: rules of iptables or, unless that is the backend configured,
// sources of firewalld's zone.
func (c *call) checkReference(ctx context.Context, want *record) error {
	err := c.checkIPTables(ctx, want)
	if err == nil || want.Backend == iptables {
		return err
	}
	if asked := checkFirewalld(ctx, want); !errors.Is(asked, errNoFirewalld) {
		return asked
	}
	return err
}
