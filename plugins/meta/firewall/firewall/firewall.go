package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

func add(ctx context.Context, req *skel.Request, cfg config) (_ *cni.Result, err error) {
	c := newCall(req)
	r, err := c.newRecord(cfg)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Policy != policyOpen && r.Bridge == "":
		return nil, cni.Refuse("ingressPolicy", string(r.Policy),
			fmt.Sprintf("needs a bridge, and interface %q is not connected to one", c.Req.IfName))
	case r.Policy == policyOpen && len(r.Addrs) == 0:
		return req.PrevResult, nil
	}
	if err := c.refuseForeignChain(ctx, r.AdminChain); err != nil {
		return nil, err
	}
	s, err := records().Open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c.addStore = s
	err = c.removeStale(ctx, s, r)
	if err == nil {
		err = c.refuseStricter(s, r)
	}
	if err != nil {
		return nil, err
	}
	c.Req.Step("add the firewall rules")
	c.Req.OnFail("remove the firewall rules", func(ctx context.Context) error { return c.remove(ctx, false) })
	if r.Backend, err = c.chooseBackend(ctx, cfg, r); err == nil && r.Backend != iptables {
		r.Bit, err = hostBit(s.Any, cfg.Bit)
	}
	if err != nil {
		return nil, err
	}
	if r.Bit != cfg.Bit && r.Backend == nftables {
		c.Req.Warn("markAcceptBit: using %d instead of %d while other containers have it", r.Bit, cfg.Bit)
	}
	err = c.apply(ctx, s, r)
	if err != nil && r.Backend == firewalld {
		r.Backend = nftables // DEL must not remove addresses that firewalld refused
		switch {
		case cfg.backend == firewalld:
			err = fmt.Errorf("backend %q: %w", firewalld, errors.Join(err, s.Put(ctx, *r)))
		case isUnusable(err):
			c.Req.Warn("firewalld cannot be used, using backend nftables: %v", err)
			err = c.apply(ctx, s, r)
		default:
			err = errors.Join(err, s.Put(ctx, *r))
		}
	}
	if cfg.backend == auto && errors.Is(err, nft.ErrUnsupported) {
		r.Backend = iptables
		err = ipt.AsFallback(c.apply(ctx, s, r), err)
	}
	return req.PrevResult, err
}

func del(ctx context.Context, req *skel.Request) error { return newCall(req).remove(ctx, true) }

func check(ctx context.Context, req *skel.Request, cfg config) error {
	c := newCall(req)
	want, err := c.newRecord(cfg)
	if err != nil || len(want.Addrs) == 0 && want.Policy == policyOpen {
		return err
	}
	return c.verify(ctx, want)
}

// reapply restores the rules of the attachment's record, unless DEL has begun. Like DEL, it holds the lock of the
// records.
func reapply(ctx context.Context, req *skel.Request, _ config) error {
	c := newCall(req)
	unattached := netplugin.VerifyAttached(req) // before the lock, because a container can delay it
	return records().Locked(ctx, func(s *store) error {
		r, ok, err := s.Get(c.Req.Hash())
		if err != nil {
			return err
		}
		reason := cmp.Or(r.checkRestorable(ok, req), unattached)
		if err := netplugin.NotRestored("firewall rules", reason); err != nil {
			return err
		}
		var tools []ipt.Tool
		if r.Backend == iptables {
			if tools, err = r.findTools(ctx, s); err != nil {
				return err
			}
		}
		p, err := r.bridgePolicy(s)
		if err == nil && r.SetFlag {
			err = c.setFlag(&r, true)
		}
		if err != nil {
			return err
		}
		return c.addRules(ctx, &r, p, tools)
	})
}

// gc removes the rules of the network's stale attachments, and the policies of bridges without ports. The reference
// plugin's rules for addresses stay, because they do not name an owner.
func gc(ctx context.Context, req *skel.Request) error {
	c := newCall(req)
	return records().Locked(ctx, func(s *store) error {
		all, err := s.All()
		errs := []error{err}
		for _, r := range all {
			if c.Req.Valid.Excludes(r.Attachment) {
				errs = append(errs, c.removeRecord(ctx, s, r))
			}
		}
		return errors.Join(append(errs, nft.IfSupported(elements().Sweep(ctx, c.NF, c.Req.Valid.IsGarbage)),
			c.sweepPolicies(ctx), c.removeSharedChains(ctx, s))...)
	})
}

func status(ctx context.Context, req *skel.Request, cfg config) error {
	c := call{Call: &netplugin.Call{Req: req, NF: nft.New()}} // no rtnetlink socket is needed
	defer c.NF.Close()
	return netplugin.Unavailable("firewall rules: ", statefile.Writable(recordDir), c.probe(ctx, cfg))
}

func (c call) probe(ctx context.Context, cfg config) error {
	switch {
	case cfg.backend == firewalld && cfg.Policy == policyOpen:
		return checkFirewalld(ctx)
	case cfg.backend == firewalld: // the policy is in nftables
		return errors.Join(checkFirewalld(ctx), c.NF.Probe(layout(cfg.Bit)))
	case cfg.backend != iptables:
		err := c.NF.Probe(layout(cfg.Bit))
		if err == nil {
			return c.warnDrops(cfg.Bit)
		}
		if cfg.backend == nftables || !errors.Is(err, nft.ErrUnsupported) {
			return err
		}
	}
	if err := ipt.CheckInstalled(nft.IPv6); err != nil {
		c.Req.Warn("backend iptables: no rules for containers with an IPv6 address: %v", err)
	}
	return ipt.Ready(c.NF)
}

// newRecord returns the attachment's record according to its configuration. It finds the bridge only if the container
// wants a policy, if policyBridgeSet has a bridge, or on the backend iptables, whose policies are not in that set.
func (c call) newRecord(cfg config) (*record, error) {
	r := &record{Attachment: c.Req.Attachment, NetnsPath: c.Req.Netns, Backend: cfg.backend, options: cfg.options,
		Addrs: addressesOf(c.Req.PrevResult, c.Req.IfName)}
	policyBridges, err := c.NF.Elements(table, policyBridgeSet)
	if err := nft.IfSupported(err); err != nil {
		return nil, err
	}
	if r.Policy != policyOpen || len(policyBridges) > 0 || r.Backend == iptables {
		if err := netplugin.IgnoreNoLink(c.FindHostEnd()); err != nil {
			return nil, err
		}
		r.Netns = c.NetnsID
		err := c.findBridge(r, c.HostEnd)
		if r.Policy == policyOpen && !cni.Transient(err) { // an open policy needs no interface
			err = nil
		}
		return r, err
	}
	if r.Netns, err = c.Req.NS.Identity(); err != nil || r.Netns.Cookie != 0 {
		return r, err
	}
	err = c.FindInterface() // without cookies, its MAC address identifies the namespace
	r.Netns = c.NetnsID
	return r, netplugin.IgnoreNoLink(err)
}

// removeStale removes a stale record of this attachment and its rules. A record is stale if its DEL has begun, if it is
// from another namespace, or if its rules in iptables are missing, because the reference plugin's DEL removes only the
// rules. If the record is not stale, removeStale returns code 100.
func (c call) removeStale(ctx context.Context, s *store, r *record) error {
	old, ok, err := s.Get(r.Hash())
	if err != nil || !ok {
		return err
	}
	if !old.Ending && old.Netns.Is(r.Netns) && (old.Backend != iptables || c.verifyIPTables(ctx, &old) == nil) {
		return cni.Errorf(cni.CodeExists, "firewall: this attachment has its rules already (%s); DEL removes them",
			r.Attachment)
	}
	if err := c.removeRecord(ctx, s, &old); err != nil {
		return err
	}
	_, isKept, err := s.Get(r.Hash())
	r.Pending = isKept && old.Backend != iptables // firewalld did not answer
	return err
}

// chooseBackend returns the configured backend. By default it returns firewalld if firewalld is running and
// checkSources accepts the record's addresses, otherwise nftables. If a userspace driver has the container's device,
// the container has no interface, and checkSources refuses its addresses. nftables then also replaces a configured
// firewalld.
func (c call) chooseBackend(ctx context.Context, cfg config, r *record) (backend, error) {
	if cfg.backend == nftables || cfg.backend == iptables {
		return cfg.backend, nil
	}
	if cfg.backend == auto {
		if isSilent() {
			c.Req.Warn("firewalld: no answer within the last %s; using backend nftables", silenceTime)
			return nftables, nil
		}
		switch err := checkFirewalld(ctx); {
		case errors.Is(err, errNoFirewalld):
			return nftables, nil
		case err != nil:
			c.Req.Warn("cannot determine whether firewalld is running; using backend nftables: %v", err)
			return nftables, nil
		}
	}
	err := c.checkSources(r)
	isReplaced := cfg.backend == auto || c.ContEnd.Index == 0
	if err == nil || !isReplaced || cni.AsError(err).Code != cni.CodeConfig {
		return firewalld, err
	}
	c.Req.Warn("backend firewalld: %v; using backend nftables", err)
	return nftables, nil
}

// apply writes the record, which DEL needs to remove the rules, and then adds the rules in the record's backend.
func (c call) apply(ctx context.Context, s *store, r *record) error {
	var tools []ipt.Tool
	if r.Backend == iptables { // before the record is written, because DEL keeps it while a program is missing
		var err error
		if tools, err = r.findTools(ctx, s); err != nil {
			return err
		}
	}
	if err := s.Put(ctx, *r); err != nil {
		return err
	}
	p, err := c.decidePolicy(ctx, s, r)
	if err == nil && r.SetFlag {
		err = c.setFlag(r, true)
	}
	if err != nil {
		return err
	}
	return c.addRules(ctx, r, p, tools)
}

// addRules adds the rules of a written record, and sets the policy of its bridge.
func (c call) addRules(ctx context.Context, r *record, p policy, tools []ipt.Tool) (err error) {
	if r.Backend == iptables {
		var putErr error
		err := editFilters(ctx, tools, func(e *ipt.Edit, f nft.Family) {
			putErr = errors.Join(putErr, c.addPreexisting(ctx, r, r.presentAddrs(e, f))) // before the rules are written
			editAll(e, r, f, p)
		})
		return errors.Join(err, putErr)
	}
	if r.Backend == nftables || r.Bridge != "" { // the policy of firewalld's attachments is in nftables
		err = c.addNFTables(ctx, r, p)
	}
	if err == nil && r.Backend == firewalld {
		r.Pending, err = c.addFirewalld(ctx, r)
	}
	return err
}

// remove removes the attachment's rules in every backend and, for DEL, also the reference plugin's rules.
func (c call) remove(ctx context.Context, isDel bool) error {
	return records().Locked(ctx, func(s *store) error {
		r, ok, err := s.Get(c.Req.Hash())
		switch {
		case err != nil:
			return err
		case ok:
			err = c.removeRecord(ctx, s, &r)
		default: // elements can exist without a record if the record was lost
			err = errors.Join(nft.IfSupported(elements().Sweep(ctx, c.NF, c.Req.Owns)), s.Drop(ctx, c.Req.Hash()))
		}
		if isDel {
			err = errors.Join(err, c.delReference(ctx, s, &r))
		}
		if r.Backend != iptables {
			err = errors.Join(err, c.removeSharedChains(ctx, s))
		}
		return err
	})
}

// removeRecord removes the rules of a record, sets its bridge's policy to the strictest policy that other records want,
// and removes the record. If a program is missing or firewalld does not answer, the record stays for a later DEL or GC.
// removeRecord sets Ending first, so that reapply restores nothing from a record that stays.
func (c call) removeRecord(ctx context.Context, s *store, r *record) error {
	r.Ending = true
	putErr := s.Put(ctx, *r)
	if err := c.removeRules(ctx, s, r); err != nil {
		return errors.Join(err, putErr)
	}
	return nil
}

func (c call) removeRules(ctx context.Context, s *store, r *record) error {
	remaining, err := r.otherPolicies(s, r.Policy)
	if err != nil {
		return err
	}
	if err = c.setFlag(r, false); isPortMissing(err) {
		err = nil
	}
	if err == nil && r.Policy == policyIsolated && remaining != policyIsolated {
		err = c.clearNeighborFlags(ctx, s, r)
	}
	if r.Backend == iptables {
		err = errors.Join(err, c.delIPTables(ctx, s, r, remaining))
	} else {
		err = errors.Join(err, nft.IfSupported(c.delNFTables(ctx, r, remaining)))
	}
	if err == nil {
		err = c.dropAdmin(ctx, s, r)
	}
	var firewalldErr error
	if r.Backend == firewalld || r.Pending {
		firewalldErr = delFirewalld(ctx, s, r)
	}
	if errors.Is(firewalldErr, errDenied) { // a later DEL would also be denied
		c.Req.Warn("addresses of %s stay in zone %q of firewalld: %v", r.Attachment, r.Zone, firewalldErr)
		firewalldErr = nil
	}
	switch {
	case ipt.NotInstalled(err), err == nil && firewalldErr != nil: // a later DEL may succeed
		c.Req.Warn("firewall rules of %s: %v", r.Attachment, errors.Join(err, firewalldErr))
		return nil
	case err != nil:
		return fmt.Errorf("firewall rules of %s: %w", r.Attachment, err)
	}
	return s.Drop(ctx, r.Hash())
}

// verify compares the record with the wanted record, and the rules with the record. If there is no record with the
// wanted addresses, the reference plugin may have added the attachment, and verify accepts that plugin's rules. A stale
// record can exist in this case, because the reference plugin's DEL does not remove records.
func (c call) verify(ctx context.Context, want *record) error {
	r, ok, err := records().Get(want.Hash())
	if err != nil {
		return err
	}
	if !ok || !slices.Equal(r.Addrs, want.Addrs) {
		if err := c.verifyReference(ctx, want); err == nil || !ok {
			return err // without a record, the reference plugin must have added the attachment
		}
	}
	var errs []error
	compare := func(key string, have, want any) {
		if !reflect.DeepEqual(have, want) {
			errs = append(errs, cni.Drift("%s: changed since ADD from %v to %v", key, have, want))
		}
	}
	compare("ingressPolicy", r.Policy, want.Policy)
	compare("iptablesAdminChainName", r.AdminChain, want.AdminChain)
	compare("acceptPublished", r.Published || r.KeptClosed, want.Published)
	compare("prevResult: the container's addresses", r.Addrs, want.Addrs)
	if r.Policy != policyOpen {
		compare("the container's bridge", r.Bridge, want.Bridge)
		errs = append(errs, c.verifyFlag(&r))
	}
	if r.Backend == firewalld {
		compare("firewalldZone", r.Zone, want.Zone)
		errs = append(errs, verifyFirewalld(ctx, &r))
	}
	switch {
	case r.Backend == iptables:
		errs = append(errs, c.verifyIPTables(ctx, &r))
	case r.Backend == nftables, r.Policy != policyOpen:
		errs = append(errs, c.verifyNFTables(ctx, &r))
	}
	return errors.Join(errs...)
}
