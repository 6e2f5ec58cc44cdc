package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// call is one call under way: the sockets that it uses.
type call struct {
	*skel.Request
	host *rtnl.Conn
	nf   *nft.Conn
	// linkDeadline is when the call stops waiting for links that the kernel removes. The first wait sets it, for all
	// owners: other calls wait for our lock meanwhile.
	linkDeadline func() time.Time
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if len(cfg.mappings) == 0 {
		return req.PrevResult, nil
	}
	c, err := open(req)
	if err != nil {
		return nil, err
	}
	r, err := c.newRecord(cfg)
	if err != nil {
		return nil, err
	}
	if r.Home, err = homeOf(c.host, c.NS, c.IfName); err != nil {
		return nil, err
	}
	c.warn(cfg, r)
	gone, err := c.publish(ctx, cfg, r)
	if err != nil {
		return nil, err
	}
	return req.PrevResult, c.flushAdded(r, gone)
}

func del(ctx context.Context, req *skel.Request) error {
	c, err := open(req)
	if err != nil {
		return err
	}
	return c.unpublish(ctx)
}

func check(ctx context.Context, req *skel.Request, cfg config) error {
	if len(cfg.mappings) == 0 {
		return nil
	}
	c, err := open(req)
	if err != nil {
		return err
	}
	want, err := c.newRecord(cfg)
	if err != nil {
		return err
	}
	return c.verify(ctx, want)
}

func gc(ctx context.Context, req *skel.Request) error {
	c, err := open(req)
	if err != nil {
		return err
	}
	return c.collect(ctx)
}

// status looks for what would make ADD fail.
func status(_ context.Context, req *skel.Request, cfg config) error {
	unavailable := func(err error, what string) error { return cni.Errorf(cni.CodeUnavailable, "%s: %w", what, err) }
	c, err := open(req)
	if err != nil {
		return unavailable(err, "host ports")
	}
	b, final, err := c.choose(cfg)
	if err == nil {
		err = statefile.Writable(recordDir)
	}
	if err != nil {
		return unavailable(err, "host ports")
	}
	if b == nftables {
		err := c.nf.Probe(sharedLayout(cfg.options.MarkBit))
		if !final && errors.Is(err, nft.ErrUnsupported) {
			b = iptables
		} else if err != nil {
			return unavailable(err, "backend nftables")
		}
	}
	if b == iptables {
		if err := ipt.Installed(nft.IPv6); err != nil {
			c.Warn("backend iptables: no host ports of containers with an IPv6 address: %v", err)
		}
		if err := ipt.Installed(nft.IPv4); err != nil {
			return unavailable(err, "backend iptables")
		}
		return nil
	}
	if len(cfg.options.ConditionsV4)+len(cfg.options.ConditionsV6) > 0 {
		if _, err := process.LookPath(nftProgram); err != nil {
			return unavailable(err, "conditionsV4, conditionsV6: the nft program has to compile them")
		}
	}
	c.warnOfIPVS(cfg)
	return nil
}

// verify compares the record with what is wanted, and the rules with the record.
func (c *call) verify(ctx context.Context, want *record) error {
	r, ok, err := records().Get(want.Hash())
	if err != nil {
		return err
	}
	if !ok {
		return c.verifyReference(ctx, want)
	}
	// The reference's DEL leaves our record, so its next ADD of the attachment, with another address, stands beside it.
	if !reflect.DeepEqual(r.Addrs, want.Addrs) && c.verifyReference(ctx, want) == nil {
		return nil
	}
	var errs []error
	same := func(key string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			errs = append(errs, drift("host ports: %s changed since ADD", key))
		}
	}
	same("portMappings", r.Mappings, want.Mappings)
	same("the configuration", r.Options, want.Options)
	same("the container's addresses in prevResult", r.Addrs, want.Addrs)
	errs = append(errs, checkLocalnet(r.Localnet), c.checkGuard(r.Localnet))
	if r.Backend == iptables {
		return errors.Join(append(errs, c.checkIPTables(ctx, &r))...)
	}
	return errors.Join(append(errs, c.checkNFTables(&r))...)
}

// verifyReference looks for what the reference plugin makes: rules in either backend and route_localnet, without
// a record and a guard.
func (c *call) verifyReference(ctx context.Context, want *record) error {
	found, err := c.checkReference(want)
	for _, a := range want.Addrs {
		where, lost := c.variants(ctx, familyOf(a.v4()).natChain(want.chain()))
		if lost != nil {
			return lost
		}
		if len(where) > 0 {
			found, err = true, c.checkIPTables(ctx, want)
			break
		}
	}
	if !found && (err == nil || cni.AsError(err).Code == cni.CodeDrift) {
		return drift("host ports: there is no record of this attachment (%s)", want.Attachment)
	}
	return errors.Join(err, checkLocalnet(want.Localnet))
}

// open dials the sockets, which are open until the call is over and a failed ADD is rolled back.
func open(req *skel.Request) (*call, error) {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return nil, err
	}
	c := &call{Request: req, host: host, nf: nft.New()}
	c.linkDeadline = sync.OnceValue(func() time.Time { return time.Now().Add(linkPatience) })
	req.OnDone(func() { _ = errors.Join(c.host.Close(), c.nf.Close()) })
	return c, nil
}

// ipvsLink is where kube-proxy in its mode ipvs has the addresses of all services: they count as local,
// and what protects them protects them from iptables only.
const ipvsLink = "kube-ipvs0"

// warnOfIPVS says what nftables means there. It is no error of STATUS: ADD works, and the runtime would make the node
// not ready for as long as the configuration stands.
func (c *call) warnOfIPVS(cfg config) {
	if cfg.backend != nftables {
		return
	}
	if _, err := c.host.Link(ipvsLink); err == nil {
		c.Warn("backend nftables beside kube-proxy in its mode ipvs (link %q): "+
			"host ports win over services of the same port", ipvsLink)
	}
}

// choose decides on the backend. final says that there is no falling back.
func (c *call) choose(cfg config) (b ipt.Backend, final bool, err error) {
	if cfg.backend != auto {
		return cfg.backend, true, nil
	}
	_, err = c.host.Link(ipvsLink)
	if errors.Is(err, rtnl.ErrNoLink) {
		return nftables, false, nil
	}
	return iptables, true, err
}

// newRecord makes the attachment's record, all but home and backend. It asks the kernel for routes and links.
func (c *call) newRecord(cfg config) (*record, error) {
	r := &record{Attachment: c.Attachment,
		Options: cfg.options, Mappings: cfg.mappings, Addrs: addressesOf(c.PrevResult.ContainerIPs(c.IfName))}
	if len(r.Addrs) == 0 {
		return nil, cni.Errorf(cni.CodeConfig, "prevResult: has no address of interface %q to forward ports to",
			c.IfName)
	}
	for i := range r.Addrs {
		if err := c.findLink(r, &r.Addrs[i]); err != nil {
			return nil, err
		}
	}
	r.trimLocalnet()
	return r, nil
}

// findLink finds the link by which the host reaches the address, and notes who is near to it and which link
// needs route_localnet. Without a route there is nothing to note.
func (c *call) findLink(r *record, a *address) error {
	index, _, err := c.host.RouteTo(a.Addr.Addr())
	if err != nil && !isUnreachable(err) {
		return err
	}
	if err != nil || index == loopbackIndex {
		return nil
	}
	link, err := c.host.LinkByIndex(index)
	if err != nil {
		return err
	}
	if link.IsPairEnd() && link.PeerNS != -1 {
		// Nobody else is on a point to point link.
		a.Near = netip.PrefixFrom(a.Addr.Addr(), a.Addr.Addr().BitLen())
	}
	if a.v4() && r.Options.SNAT {
		r.Localnet = link.Name
	}
	return nil
}

// isUnreachable reports whether the answer to a question for a route was that there is none, or one of the
// types unreachable, prohibit and blackhole, or that the kernel lacks the family.
func isUnreachable(err error) bool {
	return slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EACCES, unix.EINVAL,
		unix.EAFNOSUPPORT, unix.EOPNOTSUPP}, func(errno error) bool { return errors.Is(err, errno) })
}

func (c *call) warn(cfg config, r *record) {
	for _, m := range r.unreachable() {
		c.Warn("host port %s of %s: the container has no address of that family, so it leads nowhere", m.name(),
			m.HostIP)
	}
	for _, m := range r.Mappings {
		if m.HostIP.Is6() && m.HostIP.IsLoopback() {
			c.Warn("host port %s of %s: IPv6 cannot forward from the loopback address, so it leads nowhere", m.name(),
				m.HostIP)
		}
	}
	if cfg.options.MasqAll && !cfg.options.SNAT {
		c.Warn("masqAll: does nothing without snat")
	}
	c.warnOfIPVS(cfg)
}

// publish makes the attachment's rules, unless somebody else has one of the ports. It returns the owners that
// are gone and whose rules it replaced.
func (c *call) publish(ctx context.Context, cfg config, r *record) (gone []*record, err error) {
	final := false
	if r.Backend, final, err = c.choose(cfg); err != nil {
		return nil, err
	}
	if err := r.hasPrograms(); err != nil {
		return nil, err
	}
	s, err := records().Open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if gone, err = c.resolveConflicts(ctx, s, r); err != nil {
		return nil, err
	}
	if err := c.noteLocalnet(s, r); err != nil {
		return nil, err
	}
	c.OnFail("remove the host ports", c.unpublish)
	if err := s.Put(*r); err != nil { // from here on DEL knows what there may be
		return nil, err
	}
	err = c.apply(ctx, s, r, gone)
	if !final && errors.Is(err, nft.ErrUnsupported) {
		r.Backend = iptables
		if err = r.hasPrograms(); err == nil {
			err = s.Put(*r)
		}
		if err == nil {
			err = c.apply(ctx, s, r, gone)
		}
	}
	for _, o := range gone {
		if err == nil && o.Hash() != r.Hash() {
			err = s.Drop(o.Hash())
		}
	}
	return gone, err
}

// hasPrograms says which program of iptables is missing that ADD needs, before the record says that it ran: DEL would
// keep that record.
func (r *record) hasPrograms() error {
	if r.Backend != iptables {
		return nil
	}
	for _, a := range r.Addrs {
		if err := ipt.Installed(familyOf(a.v4()).Family); err != nil {
			return fmt.Errorf("host ports with iptables: %w", err)
		}
	}
	return nil
}

// resolveConflicts looks who has the host ports that the attachment wants. An owner that is there is an error before
// anything changes. What the reference left of a container that is gone is removed here, and what the attachment itself
// has of an earlier ADD; the records of our owners that are gone are returned, for apply to replace.
func (c *call) resolveConflicts(ctx context.Context, s *store, r *record) (gone []*record, err error) {
	own, ok, err := s.Get(r.Hash())
	if err != nil {
		return nil, err
	}
	if ok {
		isGone, err := c.isGone(ctx, &own)
		if err == nil && !isGone {
			err = cni.Errorf(cni.CodeExists,
				"host ports: this attachment has them already (%s); DEL removes them", r.Attachment)
		}
		if err != nil {
			return nil, err
		}
		gone = append(gone, &own)
	}
	holders, err := c.holders(ctx, s, r)
	if err != nil {
		return nil, err
	}
	replaced, left, err := r.yieldOrReplace(holders)
	for _, h := range left {
		for _, p := range h.wanted {
			c.Warn("host port %s: left to %s, which is the same container", p, h.owner.Attachment)
		}
	}
	for _, h := range replaced {
		if h.owner != nil {
			gone = append(gone, h.owner)
		} else if err = h.remove(); err != nil {
			return nil, err
		}
	}
	if ok && err == nil {
		// apply overwrites the record, by which DEL would find these rules.
		err = errors.Join(c.removeRules(ctx, s, &own)...)
	}
	return gone, err
}

// apply makes the rules in the record's backend and removes those of the owners that are gone, in any backend.
// With nftables that is one batch, but for owners that needed route_localnet of another link.
func (c *call) apply(ctx context.Context, s *store, r *record, gone []*record) error {
	var replaced []*record
	for _, o := range gone {
		if o.Backend == nftables && r.Backend == nftables && (o.Localnet == "" || o.Localnet == r.Localnet) {
			replaced = append(replaced, o)
		} else if err := errors.Join(c.removeRules(ctx, s, o)...); err != nil {
			return err
		}
	}
	var err error
	if r.Backend == nftables {
		err = c.addNFTables(ctx, r, replaced)
	} else if err = c.guardAlone(ctx, r); err == nil {
		err = c.addIPTables(ctx, s, r)
	}
	if err != nil || r.Localnet == "" {
		return err
	}
	return writeLocalnet(r.Localnet, "1")
}

// unpublish removes whatever the attachment has, in any backend, made by anybody.
func (c *call) unpublish(ctx context.Context) (err error) {
	s, err := openStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r, ok, err := s.Get(c.Hash())
	if err != nil {
		return err
	}
	if !ok { // its elements can only be found by their marks
		r = record{Attachment: c.Attachment}
		if c.PrevResult != nil { // the reference's rules name no network
			r.Addrs = addressesOf(c.PrevResult.ContainerIPs(c.IfName))
		}
		err := owned(defaultMarkBit).Sweep(ctx, c.nf, r.Owns)
		if err == nil {
			r.Localnet, err = c.ownGuarded()
		}
		if nft.IfSupported(err) != nil {
			return err
		}
	}
	return c.remove(ctx, s, &r)
}

// remove removes an attachment's rules, then the UDP flows that they led to the container, and then the record.
// The record stays for a later DEL or GC when a program is missing that may have its rules, or when the flows may be
// deletable a moment later.
func (c *call) remove(ctx context.Context, s *store, r *record) error {
	errs := append(c.removeRules(ctx, s, r), delReference(ctx, c.nf, r.isReferenceRule))
	var missing error
	for i, err := range errs {
		if ipt.NotInstalled(err) {
			missing, errs[i] = errors.Join(missing, err), nil
		}
	}
	err, flows := errors.Join(errs...), c.flushRemoved(r)
	if err != nil {
		return fmt.Errorf("host ports of %s: %w", r.Attachment, errors.Join(err, missing, flows))
	}
	if missing != nil {
		c.Warn("host ports of %s: %v", r.Attachment, missing)
	}
	if missing != nil && r.Backend == iptables || cni.Transient(flows) {
		return flows
	}
	return errors.Join(flows, s.Drop(r.Hash()))
}

// removeRules removes the attachment's rules from both backends.
func (c *call) removeRules(ctx context.Context, s *store, r *record) []error {
	last, err := isLastOn(s, r)
	if err != nil {
		return []error{err}
	}
	return append(c.delChains(ctx, r, siblings(s, r), families()...), nft.IfSupported(c.delNFTables(ctx, r, last)))
}

// collect removes what attachments of the network left that are not valid.
func (c *call) collect(ctx context.Context) (err error) {
	s, err := openStore(ctx)
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
	errs = append(errs, nft.IfSupported(owned(defaultMarkBit).Sweep(ctx, c.nf, c.Valid.Garbage)))
	for _, f := range families() {
		ids, err := f.natChain("").Containers(ctx, c.nf, dnPrefix, c.Network)
		errs = append(errs, err)
		for _, id := range ids {
			// The reference's rules tell no interface apart: they stay until the container has none.
			if !c.Valid.HasContainer(id) {
				left := &record{Attachment: cni.Attachment{Network: c.Network, ContainerID: id}}
				errs = append(errs, c.delChains(ctx, left, siblings(s, left), f)...)
			}
		}
	}
	return errors.Join(append(errs, nft.IfSupported(c.sweepGuard(ctx)))...)
}
