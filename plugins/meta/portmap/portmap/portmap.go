package portmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

type call struct{ *netplugin.Call }

func newCall(req *skel.Request) call { return call{netplugin.OpenHost(req)} }

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if len(cfg.mappings) == 0 {
		return req.PrevResult, nil
	}
	c := newCall(req)
	r, links, err := c.newRecord(cfg)
	if err != nil {
		return nil, err
	}
	if err := c.setLocation(r); err != nil {
		return nil, err
	}
	if err := c.checkTargets(r, links); err != nil {
		return nil, err
	}
	c.warnUnreachable(r)
	c.Req.Step("publish the host ports")
	if err := c.publish(ctx, cfg, r); err != nil {
		return nil, err
	}
	c.Req.Step("flush old flows")
	return req.PrevResult, flushAdded(c.Host, r)
}

func del(ctx context.Context, req *skel.Request) error { return newCall(req).remove(ctx) }

func check(ctx context.Context, req *skel.Request, cfg config) error {
	if len(cfg.mappings) == 0 {
		return nil
	}
	c := newCall(req)
	want, _, err := c.newRecord(cfg)
	if err != nil {
		return err
	}
	return c.verify(ctx, want)
}

// reapply restores the rules of the attachment's record, unless DEL has begun. It holds the lock of the records, so
// that no DEL or ADD runs concurrently. It compiles conditions after it has released the lock. If a DEL removes their
// chain in between, nft fails.
func reapply(ctx context.Context, req *skel.Request, _ config) error {
	c := newCall(req)
	unattached := netplugin.VerifyAttached(req) // before the lock, because a container can delay it
	var r record
	err := records().Locked(ctx, func(s *store) (err error) {
		var ok bool
		if r, ok, err = s.Get(c.Req.Hash()); err != nil {
			return err
		}
		reason := cmp.Or(r.checkRestorable(ok, req), unattached)
		if err := netplugin.NotRestored("host ports", reason); err != nil {
			return err
		}
		p := &publication{call: c, store: s, r: &r, isRecorded: true, isRestore: true}
		return p.attempt(ctx)
	})
	if err == nil {
		err = r.compileConditions(ctx)
	}
	if err != nil {
		return err
	}
	return flushAdded(c.Host, &r)
}

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
		return errors.Join(append(errs, nft.IfSupported(owned(defaultMarkBit).Sweep(ctx, c.NF, c.Req.Valid.IsGarbage)),
			c.collectReference(ctx, s), nft.IfSupported(c.sweepGuard(ctx, func(string) bool { return true })))...)
	})
}

// list returns the host ports in the records, and the reference plugin's host ports.
func list(ctx context.Context, _ *skel.Request) ([]cni.Holding, error) {
	hasRecord := map[string]bool{} // by chain in iptables
	all, err := netplugin.Holdings(records(), func(r record) (ports []cni.Holding) {
		hasRecord[r.chain()] = true
		for _, p := range r.hostPorts() {
			ports = append(ports, p.holding(r.Attachment))
		}
		return netplugin.WithNetns(r.Location.NetnsPath, r.Location.Netns, ports...)
	})
	nf := nft.New()
	defer nf.Close()
	references, referenceErr := listReference(ctx, nf, hasRecord)
	return append(all, references...), errors.Join(err, referenceErr)
}

func status(_ context.Context, req *skel.Request, cfg config) error {
	return netplugin.Unavailable("host ports: ", statefile.Writable(recordDir), newCall(req).probe(cfg))
}

func (c call) probe(cfg config) error {
	b, err := c.chooseBackend(cfg)
	if err != nil {
		return err
	}
	if b == nftables {
		err := c.NF.Probe(sharedLayout(cfg.options.MarkBit))
		if err == nil && len(cfg.options.ConditionsV4)+len(cfg.options.ConditionsV6) > 0 {
			if _, err := process.LookPath(nftProgram); err != nil {
				return fmt.Errorf("conditionsV4, conditionsV6: the nft program has to compile them: %w", err)
			}
		}
		if cfg.backend != auto || !errors.Is(err, nft.ErrUnsupported) {
			return err
		}
	}
	if err := ipt.CheckInstalled(nft.IPv6); err != nil {
		c.Req.Warn("backend iptables: no host ports of containers with an IPv6 address: %v", err)
	}
	return ipt.Ready(c.NF)
}

// verify compares the record with the wanted one, and the rules with the record.
func (c call) verify(ctx context.Context, want *record) error {
	r, ok, err := records().Get(want.Hash())
	if err != nil {
		return err
	}
	// The reference plugin's DEL does not remove the record. If the reference plugin then adds the attachment again,
	// with another address, the record is stale.
	if !ok || !reflect.DeepEqual(r.Addrs, want.Addrs) {
		if err := c.verifyReference(ctx, want); !ok || err == nil {
			return err
		}
	}
	var errs []error
	compare := func(key string, have, want any) {
		if !reflect.DeepEqual(have, want) {
			errs = append(errs, cni.Drift("host ports: %s changed since ADD", key))
		}
	}
	compare("portMappings", r.Mappings, want.Mappings)
	compare("the configuration", r.Options, want.Options)
	compare("the container's addresses in prevResult, or the host's route to them,", r.Addrs, want.Addrs)
	errs = append(errs, c.verifyLocalnet(r.Localnet, true))
	if r.Backend == iptables {
		return errors.Join(append(errs, c.verifyIPTables(ctx, &r))...)
	}
	return errors.Join(append(errs, c.verifyNFTables(&r))...)
}

// ipvsLink is the link with the addresses of all services in kube-proxy's ipvs mode. These addresses are local, so host
// ports apply to them unless rules in iptables prevent it.
const ipvsLink = "kube-ipvs0"

// chooseBackend returns the configured backend. By default it returns iptables if kube-proxy runs in ipvs mode,
// otherwise nftables. ADD still falls back to iptables if the kernel does not support nftables. If nftables is
// configured in ipvs mode, chooseBackend only warns, because ADD works, and an error from STATUS would keep the node
// from becoming ready.
func (c call) chooseBackend(cfg config) (ipt.Backend, error) {
	if cfg.backend == iptables {
		return iptables, nil
	}
	_, err := c.Host.Link(ipvsLink)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return nftables, nil
	case err != nil || cfg.backend == auto:
		return iptables, err
	}
	c.Req.Warn("backend nftables with kube-proxy in ipvs mode (link %q): "+
		"host ports take precedence over services with the same port", ipvsLink)
	return nftables, nil
}

// newRecord returns the attachment's record without location and backend. It also returns the link by which the host
// reaches each of the addresses, or the zero Link if there is no route. The link determines the sources to masquerade,
// and host ports of 127.0.0.1 need its route_localnet.
func (c call) newRecord(cfg config) (*record, []rtnl.Link, error) {
	r := &record{Attachment: c.Req.Attachment,
		Options: cfg.options, Mappings: cfg.mappings, Addrs: addressesOf(c.Req.PrevResult.ContainerIPs(c.Req.IfName))}
	if len(r.Addrs) == 0 {
		return nil, nil, cni.Errorf(cni.CodeConfig, "prevResult: has no address of interface %q to forward ports to",
			c.Req.IfName)
	}
	links := make([]rtnl.Link, len(r.Addrs))
	for i := range r.Addrs {
		a := &r.Addrs[i]
		index, err := c.Host.RouteTo(a.Addr.Addr())
		if rtnl.IsUnreachable(err) {
			continue
		}
		var link rtnl.Link
		if err == nil {
			link, err = c.Host.LinkByIndex(index)
		}
		if err != nil {
			return nil, nil, err
		}
		if links[i] = link; index == loopbackIndex {
			continue
		}
		if link.IsPairEnd() && link.PeerNS != -1 { // a point-to-point link
			a.MasqSources = netip.PrefixFrom(a.Addr.Addr(), a.Addr.Addr().BitLen())
		}
		if a.family() == nft.IPv4 && r.Options.SNAT {
			r.Localnet = link.Name
		}
	}
	r.trimLocalnet()
	return r, links, nil
}

// setLocation sets the attachment's location in the record, with a host end if the interface has one.
func (c call) setLocation(r *record) error {
	err := c.FindHostEnd()
	netns := c.NetnsID
	netns.MAC = "" // a container's records share the namespace, and have different interfaces
	r.Location = location{c.Req.NS.Path(), netns, c.HostEnd.Index, c.HostEnd.MAC.String()}
	return netplugin.IgnoreNoLink(err)
}

// warnUnreachable warns of mappings that do not work or do not work yet, and of masqAll without snat. It does not warn
// of a mapping for 0.0.0.0 or :: if the container has no address of its family, because runtimes send both.
func (c call) warnUnreachable(r *record) {
	for _, m := range r.Mappings {
		port := hostPort{Proto: m.Proto, Addr: m.HostIP, Port: m.HostPort}
		if m.HostIP.IsValid() && !m.HostIP.IsUnspecified() && !isLocal(c.Host, m.HostIP) {
			c.Req.Warn("host port %s: the host does not have this address; the port works once it has", port)
		}
		isSameFamily := func(a address) bool { return a.family() == nft.FamilyOf(m.HostIP) }
		if m.HostIP.IsValid() && !m.HostIP.IsUnspecified() && !slices.ContainsFunc(r.Addrs, isSameFamily) {
			c.Req.Warn("host port %s: the container has no address of that family, so the port does not work", port)
		}
		if m.HostIP == netip.IPv6Loopback() {
			c.Req.Warn("host port %s: IPv6 cannot forward from the loopback address, so the port does not work", port)
		}
	}
	if r.Options.MasqAll && !r.Options.SNAT {
		c.Req.Warn("masqAll: has no effect without snat")
	}
}

// remove removes the attachment's rules from both backends, and the reference plugin's rules for the attachment.
func (c call) remove(ctx context.Context) error {
	return records().Locked(ctx, func(s *store) error {
		r, ok, err := s.Get(c.Req.Hash())
		if ok {
			return c.removeRecord(ctx, s, &r)
		}
		if err == nil { // without a record, only marks identify the elements
			// The addresses identify the reference plugin's rules in nftables, which do not name the network.
			r = record{Attachment: c.Req.Attachment, Addrs: addressesOf(c.Req.PrevResult.ContainerIPs(c.Req.IfName))}
			isHostEnd := func(name string) bool { return slices.Contains(iface.HostNames(r.Attachment), name) }
			err = errors.Join(nft.IfSupported(owned(defaultMarkBit).Sweep(ctx, c.NF, r.Owns)),
				nft.IfSupported(c.sweepGuard(ctx, isHostEnd)))
		}
		if err != nil {
			return err
		}
		return c.removeRules(ctx, s, &r)
	})
}

// removeRecord removes a record and its rules, for DEL and GC. It sets Ending first, so that reapply restores nothing
// from a record that stays.
func (c call) removeRecord(ctx context.Context, s *store, r *record) error {
	r.Ending = true
	putErr := s.Put(ctx, *r)
	if err := c.removeRules(ctx, s, r); err != nil {
		return errors.Join(err, putErr)
	}
	return nil
}

// removeRules removes an attachment's rules, then the UDP flows that they translated, then the record. The record stays
// for a later DEL or GC if rules cannot be removed, if its backend is iptables and a program is missing, or if the
// deletion of flows failed temporarily.
func (c call) removeRules(ctx context.Context, s *store, r *record) error {
	err := errors.Join(c.delChains(ctx, s, r, nft.Families()...), nft.IfSupported(c.delNFTables(ctx, s, r)),
		c.delReference(ctx, r))
	flowErr := c.flushRemoved(r)
	isKept := cni.Transient(flowErr)
	if ipt.NotInstalled(err) {
		c.Req.Warn("host ports of %s: %v", r.Attachment, err)
		isKept = isKept || r.Backend == iptables
	} else if err != nil {
		return fmt.Errorf("host ports of %s: %w", r.Attachment, errors.Join(err, flowErr))
	}
	if isKept {
		return flowErr
	}
	return errors.Join(flowErr, s.Drop(ctx, r.Hash()))
}
