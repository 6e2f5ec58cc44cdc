package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// callTimeout ends what waits for locks before the runtime gives up on us.
const callTimeout = 90 * time.Second

// call is one call under way: the sockets that it uses.
type call struct {
	*skel.Request
	host *rtnl.Conn
	nf   *nft.Conn
}

func add(ctx context.Context, req *skel.Request) (*cni.Result, error) {
	cfg, err := parseConfig(req)
	if err != nil {
		return nil, err
	}
	if req.PrevResult == nil {
		return nil, cni.Errorf(cni.CodeConfig, "prevResult: missing; portmap works behind the plugin that makes the interface")
	}
	if len(cfg.mappings) == 0 {
		return req.PrevResult, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := open(req)
	if err != nil {
		return nil, err
	}
	defer c.close()
	st, err := c.describe(cfg)
	if err != nil {
		return nil, err
	}
	c.warn(cfg, st)
	dead, err := c.publish(ctx, cfg, st)
	if err != nil {
		return nil, err
	}
	return req.PrevResult, c.flushAdded(st, dead)
}

func del(ctx context.Context, req *skel.Request) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := open(req)
	if err != nil {
		return err
	}
	defer c.close()
	return c.unpublish(ctx, req.Attachment)
}

func check(ctx context.Context, req *skel.Request) error {
	cfg, err := parseConfig(req)
	if err != nil {
		return err
	}
	if req.PrevResult == nil {
		return cni.Errorf(cni.CodeConfig, "prevResult: missing; CHECK compares the rules with it")
	}
	if len(cfg.mappings) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := open(req)
	if err != nil {
		return err
	}
	defer c.close()
	want, err := c.describe(cfg)
	if err != nil {
		return err
	}
	return c.verify(ctx, cfg, want)
}

func gc(ctx context.Context, req *skel.Request) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := open(req)
	if err != nil {
		return err
	}
	defer c.close()
	return c.collect(ctx)
}

func status(ctx context.Context, req *skel.Request) error {
	cfg, err := parseConfig(req)
	if err != nil {
		return err
	}
	c, err := open(req)
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	defer c.close()
	return c.status(cfg)
}

func open(req *skel.Request) (*call, error) {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return nil, err
	}
	return &call{Request: req, host: host, nf: nft.New()}, nil
}

func (c *call) close() {
	_ = c.host.Close()
	_ = c.nf.Close()
}

// describe works out what the attachment's rules are made from.
func (c *call) describe(cfg config) (*state, error) {
	st := &state{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName,
		Options: cfg.options, Mappings: cfg.mappings, Targets: targets(c.PrevResult.ContainerIPs(c.IfName))}
	if len(st.Targets) == 0 {
		return nil, cni.Errorf(cni.CodeConfig, "prevResult: has no address of interface %q to forward ports to", c.IfName)
	}
	for i := range st.Targets {
		if err := c.inspect(st, &st.Targets[i]); err != nil {
			return nil, err
		}
	}
	var err error
	st.Life, err = lifeOf(c.host, c.NS, c.IfName)
	return st, err
}

// inspect looks where the host sends packets to the target. Without a way
// there nothing more is needed.
func (c *call) inspect(st *state, t *target) error {
	index, _, err := c.host.RouteTo(t.Addr.Addr())
	if err != nil || index == loopbackIndex {
		return nil
	}
	link, err := c.host.LinkByIndex(index)
	if err != nil {
		return err
	}
	if link.Kind == "veth" && link.PeerNS != -1 {
		// Nobody else is on a point to point link.
		t.Near = singlePrefix(t.Addr.Addr())
	}
	if t.v4() && st.Options.SNAT {
		st.Localnet = link.Name
	}
	return nil
}

// ipvsLink is where kube-proxy in its mode ipvs has the addresses of all
// services: they count as local, and what protects them protects them from
// iptables only.
const ipvsLink = "kube-ipvs0"

// choose decides on the backend. final says that there is no falling back.
func (c *call) choose(cfg config) (b backend, final bool, err error) {
	switch {
	case cfg.asked != auto:
		return cfg.asked, true, nil
	case cfg.needed != auto:
		return cfg.needed, true, nil
	}
	_, err = c.host.Link(ipvsLink)
	if errors.Is(err, rtnl.ErrNoLink) {
		return nftables, false, nil
	}
	return iptables, true, err
}

func (c *call) warn(cfg config, st *state) {
	for _, m := range st.unreachable() {
		c.Warn("host port %s of %s: the container has no address of that family, so it leads nowhere", m.name(), m.HostIP)
	}
	for _, m := range st.Mappings {
		if m.HostIP.Is6() && m.HostIP.IsLoopback() {
			c.Warn("host port %s of %s: IPv6 cannot forward from the loopback address, so it leads nowhere", m.name(), m.HostIP)
		}
	}
	if cfg.options.MasqAll && !cfg.options.SNAT {
		c.Warn("masqAll: does nothing without snat")
	}
	if cfg.asked == nftables || cfg.needed == nftables {
		if _, err := c.host.Link(ipvsLink); err == nil {
			c.Warn("backend nftables beside kube-proxy in its mode ipvs (link %q): host ports win over services of the same port", ipvsLink)
		}
	}
}

// publish makes the attachment's rules, unless somebody else has one of the
// ports. It returns the dead owners whom it replaced.
func (c *call) publish(ctx context.Context, cfg config, st *state) (dead []*state, err error) {
	b, final, err := c.choose(cfg)
	if err != nil {
		return nil, err
	}
	s, err := openStore(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if dead, err = c.resolve(ctx, s, st); err != nil {
		return nil, err
	}
	c.OnFail("remove the host ports", func(ctx context.Context) error { return c.undo(ctx, st) })
	st.Backend = b
	if err := c.begin(s, st); err != nil {
		return nil, err
	}
	err = c.apply(ctx, s, st, dead)
	if !final && errors.Is(err, nft.ErrUnsupported) {
		st.Backend = iptables
		if err = s.put(st); err == nil {
			err = c.apply(ctx, s, st, dead)
		}
	}
	if err != nil {
		return nil, tryAgain(err)
	}
	for _, d := range dead {
		if ownerOf(d) != ownerOf(st) {
			err = errors.Join(err, s.drop(ownerOf(d)))
		}
	}
	return dead, err
}

// resolve finds out who has the ports. A live owner is an error that names
// it, before anything changed; dead ones are returned.
func (c *call) resolve(ctx context.Context, s *store, st *state) (dead []*state, err error) {
	self := ownerOf(st)
	own, err := s.record(self)
	if err != nil {
		return nil, err
	}
	if own != nil {
		lives, err := own.Life.alive(c.host)
		if err != nil {
			return nil, err
		}
		if lives {
			return nil, cni.Errorf(cni.CodeExists, "host ports: this attachment has them already (%s); DEL removes them", st.attachment())
		}
		dead = append(dead, own)
	}
	seen := map[[8]byte]bool{}
	for _, k := range s.ledger.conflicts(st.forwards(), self) {
		if seen[k.owner] {
			continue
		}
		seen[k.owner] = true
		other, err := s.record(k.owner)
		if err != nil {
			return nil, err
		}
		if other == nil {
			// Its rules went before its record did.
			if err := s.drop(k.owner); err != nil {
				return nil, err
			}
			continue
		}
		lives, err := other.Life.alive(c.host)
		if err != nil {
			return nil, err
		}
		if lives {
			return nil, portTaken("host port %s: held on %s by %s", k.wanted, hostName(k.host), other.attachment())
		}
		dead = append(dead, other)
	}
	return dead, refuseForeign(ctx, c.nf, s, st)
}

// begin writes the record: from here on DEL knows what there may be.
func (c *call) begin(s *store, st *state) error {
	if s.fresh {
		// Where records were lost, what they were about may still be there.
		left, err := owned(c.nf, func(string) bool { return true })
		if absent(err) != nil {
			return err
		}
		s.ledger.complete = len(left) == 0 && len(s.ledger.claims) == 0
	}
	return s.put(st)
}

// apply makes the rules in the state's backend and takes away those of the
// dead, wherever they are.
func (c *call) apply(ctx context.Context, s *store, st *state, dead []*state) error {
	var others []*state
	for _, d := range dead {
		if d.Backend == nftables && st.Backend == nftables {
			others = append(others, d)
		} else if err := c.removeRules(ctx, s, d); err != nil {
			return err
		}
	}
	if st.Backend == nftables {
		if err := addNFTables(ctx, c.nf, st, others); err != nil {
			return err
		}
		if len(st.Compiled) > 0 {
			if err := s.put(st); err != nil {
				return err
			}
		}
		return enableLocalnet(st)
	}
	if err := c.guard(ctx, st.Localnet); err != nil {
		return err
	}
	siblings, err := s.siblings(st)
	if err != nil {
		return err
	}
	if err := addIPTables(ctx, c.nf, st, siblings); err != nil {
		return err
	}
	return enableLocalnet(st)
}

// undo is unpublish for what an ADD that failed made.
func (c *call) undo(ctx context.Context, st *state) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	again, err := open(c.Request)
	if err != nil {
		return err
	}
	defer again.close()
	return again.unpublish(ctx, st.attachment())
}

// unpublish removes whatever the attachment has, in any backend, made by
// anybody.
func (c *call) unpublish(ctx context.Context, a cni.Attachment) (err error) {
	s, err := openStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	owner := hashKey(a.Hash())
	st, err := s.record(owner)
	if err != nil {
		return err
	}
	if st != nil {
		return c.removeOwner(ctx, s, st)
	}
	st = &state{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName, Localnet: s.ledger.link(owner)}
	if !s.ledger.complete || s.ledger.has(owner) || c.mentionsPorts() {
		err := errors.Join(absent(sweepNFTables(ctx, c.nf, a.Owns)), absent(dropConditions(ctx, c.nf, st)))
		if err != nil {
			return err
		}
	}
	if s.ledger.has(owner) {
		return c.removeOwner(ctx, s, st)
	}
	return c.removeForeign(ctx, s, st)
}

// mentionsPorts says whether the configuration has port mappings, however
// broken the rest of it is: then there should have been a record.
func (c *call) mentionsPorts() bool {
	var w struct {
		RuntimeConfig struct {
			PortMappings []any `json:"portMappings"`
		} `json:"runtimeConfig"`
	}
	return c.Decode(&w) == nil && len(w.RuntimeConfig.PortMappings) > 0
}

// removeOwner removes everything of an attachment that has a record, and then
// the record.
func (c *call) removeOwner(ctx context.Context, s *store, st *state) error {
	err := errors.Join(c.removeRules(ctx, s, st), absent(delReference(ctx, c.nf, st)))
	if isMissing(err) {
		c.Warn("host ports of %s: %v", st.attachment(), err)
		return c.flushRemoved(st)
	}
	if err != nil {
		return errors.Join(tryAgain(err), c.flushRemoved(st))
	}
	return errors.Join(c.flushRemoved(st), s.drop(ownerOf(st)))
}

// removeRules removes the attachment's rules from both backends.
func (c *call) removeRules(ctx context.Context, s *store, st *state) error {
	free := ""
	if st.Localnet != "" && !s.ledger.uses(st.Localnet, ownerOf(st)) {
		free = st.Localnet
	}
	siblings, err := s.siblings(st)
	errs := []error{err, delNFTables(ctx, c.nf, st, free)}
	if errors.Is(errs[1], nft.ErrUnsupported) {
		errs[1] = unguardIPTables(ctx, free)
	} else if len(st.Options.ConditionsV4)+len(st.Options.ConditionsV6) > 0 {
		errs = append(errs, dropConditions(ctx, c.nf, st))
	}
	if err == nil {
		errs = append(errs, delIPTables(ctx, c.nf, st, siblings))
	}
	return errors.Join(errs...)
}

// removeForeign removes what the reference plugins left of a container that
// has no record.
func (c *call) removeForeign(ctx context.Context, s *store, st *state) error {
	siblings, err := s.siblings(st)
	if err != nil {
		return err
	}
	err = errors.Join(delIPTables(ctx, c.nf, st, siblings), absent(delReference(ctx, c.nf, st)))
	if isMissing(err) {
		c.Warn("host ports of %s: %v", st.attachment(), err)
		return nil
	}
	return err
}

// verify compares the record with what is wanted, and the rules with both.
func (c *call) verify(ctx context.Context, cfg config, want *state) error {
	s, err := openStore(ctx)
	if err != nil {
		return err
	}
	st, err := s.record(ownerOf(want))
	if err := errors.Join(err, s.close()); err != nil {
		return err
	}
	if st == nil {
		b, _, err := c.choose(cfg)
		if err != nil {
			return err
		}
		want.Backend = b
		return errors.Join(drift("host ports: there is no record of this attachment (%s)", want.attachment()), c.verifyRules(ctx, want))
	}
	var errs []error
	same := func(key string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			errs = append(errs, drift("host ports: %s changed since ADD", key))
		}
	}
	same("portMappings", st.Mappings, want.Mappings)
	same("the configuration", normal(st.Options), normal(want.Options))
	same("the container's addresses in prevResult", st.Targets, want.Targets)
	return errors.Join(append(errs, c.verifyRules(ctx, st))...)
}

// normal makes options comparable: no conditions are an empty list or none.
func normal(o options) options {
	o.ConditionsV4, o.ConditionsV6 = slices.Concat(o.ConditionsV4, nil), slices.Concat(o.ConditionsV6, nil)
	return o
}

func (c *call) verifyRules(ctx context.Context, st *state) error {
	local := checkLocalnet(ctx, c.nf, st.Localnet)
	if st.Backend == iptables {
		return errors.Join(checkIPTables(ctx, c.nf, st), local)
	}
	return errors.Join(checkNFTables(c.nf, st), local)
}

// collect removes what attachments of the network left that are not valid.
func (c *call) collect(ctx context.Context) (err error) {
	s, err := openStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	all, err := s.all()
	if err != nil {
		return err
	}
	var errs []error
	for _, st := range all {
		if st.Network == c.Network && !c.Valid.Has(st.attachment()) {
			errs = append(errs, c.collectOwner(ctx, s, st))
		}
	}
	errs = append(errs, absent(sweepNFTables(ctx, c.nf, c.Valid.Garbage)))
	ids, err := foreignContainers(ctx, c.nf, c.Network)
	errs = append(errs, err)
	for _, id := range ids {
		// Rules of the reference tell no interface apart: they stay until the
		// container has none.
		if !c.Valid.HasContainer(id) {
			errs = append(errs, delIPTables(ctx, c.nf, &state{Network: c.Network, ContainerID: id}, nil))
		}
	}
	errs = append(errs, absent(sweepGuards(ctx, c.nf, func(link string) bool {
		_, err := c.host.Link(link)
		return !errors.Is(err, rtnl.ErrNoLink)
	})))
	return tryAgain(errors.Join(errs...))
}

// collectOwner is removeOwner for GC: the reference's rules carry no network
// and no interface, so they stay while the container has anything valid.
func (c *call) collectOwner(ctx context.Context, s *store, st *state) error {
	err := c.removeRules(ctx, s, st)
	if !c.Valid.HasContainer(st.ContainerID) {
		err = errors.Join(err, absent(delReference(ctx, c.nf, st)))
	}
	if err != nil {
		return fmt.Errorf("host ports of %s: %w", st.attachment(), err)
	}
	return errors.Join(c.flushRemoved(st), s.drop(ownerOf(st)))
}

// status looks for what would make ADD fail.
func (c *call) status(cfg config) error {
	b, final, err := c.choose(cfg)
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	if err := writable(); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "host ports: %w", err)
	}
	if b == nftables {
		err := c.nf.Probe(sharedLayout(cfg.options.mark()))
		if err != nil && (final || !errors.Is(err, nft.ErrUnsupported)) {
			return cni.Errorf(cni.CodeUnavailable, "backend nftables: %w", err)
		}
		if err != nil {
			b = iptables
		}
	}
	if b == iptables {
		return unavailable(installed())
	}
	if cfg.needed == nftables {
		if err := nft.FindProgram(); err != nil {
			return cni.Errorf(cni.CodeUnavailable, "conditionsV4, conditionsV6: the nft program has to compile them: %w", err)
		}
	}
	if _, err := c.host.Link(ipvsLink); err == nil {
		return cni.Errorf(cni.CodeLimited, "backend nftables beside kube-proxy in its mode ipvs (link %q): host ports win over services of the same port", ipvsLink)
	}
	return nil
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return cni.Errorf(cni.CodeUnavailable, "backend iptables: %w", err)
}
