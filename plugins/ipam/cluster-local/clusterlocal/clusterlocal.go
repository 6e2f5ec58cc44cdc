package clusterlocal

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
	"github.com/hawser-cni/plugins/plugins/ipam/cluster-local/kube"
)

// session is one call's connection to the cluster.
type session struct {
	place
	cluster       cluster // without a client until connect
	isKubeletName bool    // the node's name is from the kubelet's own certificate
	pools         []pool  // whereabouts' pools at the beginning of the call; only for a guard or an import
}

// connect reads the kubeconfig on the first call. If the configuration does not name the node, connect takes the name
// from the kubelet's certificate or from /etc/hostname.
func (s *session) connect(ctx context.Context) error {
	if s.cluster.api != nil {
		return nil
	}
	if err := checkHostFile(s.keys.kubeconfig, s.kubeconfig); err != nil {
		return err
	}
	client, err := kube.Open(ctx, s.kubeconfig)
	if err != nil {
		return err
	}
	if s.node = cmp.Or(s.node, client.Node()); s.node == "" {
		name, err := os.ReadFile("/etc/hostname")
		if err != nil {
			return err
		}
		s.node = strings.ToLower(strings.TrimSpace(string(name)))
	}
	if !isNode(s.node) {
		return cni.Refuse("ipam.node", s.node, "is not a valid node name; write the name that kubectl get nodes prints")
	}
	s.isKubeletName = s.node == client.Node()
	s.cluster = cluster{client}
	return nil
}

// checkNode returns an error if the cluster has no node with this name, because other nodes would then treat its leases
// as a deleted node's and reclaim them. It queries the API server once per boot.
func (s *session) checkNode(ctx context.Context) error {
	if s.isKubeletName {
		return nil
	}
	boot, err := sysctl.BootID()
	if err != nil || s.isMarked(nodeMarkFile(s.node), boot) {
		return err
	}
	exists, err := s.cluster.hasNode(ctx, s.node)
	if err != nil {
		return err
	}
	if !exists {
		return cni.Refuse("ipam.node", s.node, "is not a node of the cluster, or is out of service, so that other "+
			"nodes would reclaim its leases; write the name that kubectl get nodes prints")
	}
	return s.setMark(ctx, nodeMarkFile(s.node), boot)
}

func add(ctx context.Context, req *skel.Request, cfg *config) (*cni.Result, error) {
	if len(cfg.sets)+len(cfg.staticIPs) == 0 {
		return nil, cni.Errorf(cni.CodeConfig, "runtimeConfig.ipRanges: no ranges to assign addresses from")
	}
	dns := cfg.dns
	if cfg.resolvConf != "" {
		var err error
		if dns, err = ranges.ReadDNS(cfg.resolvConf); err != nil {
			return nil, err
		}
	}
	ctx, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	a := &allocation{session: session{place: cfg.place}, req: req, cfg: cfg,
		record: record{Attachment: req.Attachment, Nonce: rand.Text()}}
	if err := a.session.connect(ctx); err != nil {
		return nil, err
	}
	if err := a.session.checkNode(ctx); err != nil {
		return nil, err
	}
	if a.session.guard != "" {
		var err error
		if a.session.pools, err = a.session.cluster.pools(ctx); err != nil {
			return nil, err
		}
	}
	if err := a.session.createRecord(ctx, a.record); err != nil {
		return nil, err
	}
	req.OnFail("release the addresses", func(ctx context.Context) error {
		return a.session.releaseRecord(ctx, a.record)
	})
	req.Step("reserve addresses")
	var ips []cni.IP
	for i, set := range cfg.sets {
		addr, err := a.allocate(ctx, i, set)
		if err != nil {
			return nil, err
		}
		r, _ := set.RangeOf(addr)
		ips = append(ips, cni.IP{Address: netip.PrefixFrom(addr, r.Subnet.Bits()), Gateway: r.Gateway})
	}
	if err := a.session.updateRecord(ctx, a.record); err != nil {
		return nil, err
	}
	req.Step("release late leases")
	a.session.sweepTombstones(ctx)
	return &cni.Result{IPs: append(ips, cfg.staticIPs...), Routes: cfg.routes, DNS: dns}, nil
}

// del releases the leases in the attachment's record. Without a record, it releases the addresses of prevResult for
// which the attachment holds a lease.
func del(ctx context.Context, req *skel.Request, p place) error {
	s := &session{place: p}
	r, ok, err := s.records().Get(req.Attachment.Hash())
	if err != nil {
		return err
	}
	switch {
	case ok:
		if err = s.connect(ctx); err == nil {
			err = s.releaseRecord(ctx, r)
		}
	case req.PrevResult != nil && len(req.PrevResult.IPs) > 0 || s.guard != "":
		err = s.releaseUnrecorded(ctx, req)
	}
	if !ok && err == nil {
		err = s.removeDamaged(ctx, req.Attachment)
	}
	if err == nil {
		s.sweepTombstones(ctx)
	}
	return err
}

// releaseUnrecorded releases the addresses of prevResult for which the attachment holds a lease on this node.
func (s *session) releaseUnrecorded(ctx context.Context, req *skel.Request) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	var addrs []netip.Addr
	if req.PrevResult != nil {
		for _, ip := range req.PrevResult.IPs {
			addrs = append(addrs, ip.Address.Addr().Unmap())
		}
	}
	errs := []error{s.unguard(ctx, req.Attachment, addrs)}
	for _, addr := range addrs {
		name := nameOf(s.space, addr)
		l, ok, err := s.cluster.getLease(ctx, name)
		if err == nil && ok && l.Node == s.node && l.attachment() == req.Attachment {
			err = s.cluster.release(ctx, l)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// unguard removes the attachment's entries from whereabouts' pools.
func (s *session) unguard(ctx context.Context, a cni.Attachment, addrs []netip.Addr) error {
	if s.guard == "" {
		return nil
	}
	return s.cluster.unguard(ctx, s.space, a, addrs)
}

func check(ctx context.Context, req *skel.Request, cfg *config) error {
	ctx, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	s := &session{place: cfg.place}
	r, ok, err := s.records().Get(req.Attachment.Hash())
	if err != nil {
		return err
	}
	if !ok && len(cfg.sets) > 0 {
		return cni.Drift("no address is reserved for %s", req.Attachment)
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	var addrs []netip.Addr
	for _, name := range r.Held {
		l, ok, err := s.cluster.getLease(ctx, name)
		addr, _ := addressOf(name)
		switch {
		case err != nil:
			return err
		case !ok:
			return cni.Drift("%s: the API server has no %s %s: it was deleted", addr, kind, name)
		case l.Nonce != r.Nonce:
			return cni.Drift("%s is reserved for %s", addr, l)
		}
		addrs = append(addrs, addr)
	}
	return ranges.Verify(cfg.sets, req.PrevResult, addrs)
}

// gc releases the leases of attachments that are not valid. Once per boot and network it lists this node's leases in
// the cluster, because records can be lost with the node's disk or in a power failure.
func gc(ctx context.Context, req *skel.Request, p place) error {
	s := &session{place: p}
	boot, err := sysctl.BootID()
	if err != nil {
		return err
	}
	var strays []lease
	isReconciled := s.isMarked(gcMarkFile(req.Network), boot)
	if !isReconciled {
		if err := s.connect(ctx); err != nil {
			return err
		}
		if strays, _, err = s.cluster.list(ctx, s.space, s.node); err != nil {
			return err
		}
	}
	records, err := s.records().List()
	errs := []error{err}
	for _, k := range records {
		if req.Valid.Excludes(k.Record.Attachment) {
			if err := s.connect(ctx); err != nil {
				return err
			}
			errs = append(errs, s.releaseRecord(ctx, k.Record))
		}
	}
	for _, l := range strays {
		if req.Valid.Excludes(l.attachment()) {
			errs = append(errs, s.unguard(ctx, l.attachment(), leaseAddrs([]string{l.name})),
				s.cluster.release(ctx, l))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.sweepTombstones(ctx)
	if isReconciled {
		return nil
	}
	return s.setMark(ctx, gcMarkFile(req.Network), boot)
}

const probeTime = 2 * time.Second // limits how long STATUS waits for the API server

// status checks whether ADD could begin. It contacts the API server only if statusOnStoreDown requests that: runtimes
// call STATUS every few seconds, and an error makes the node not ready, which also affects containers that already have
// addresses.
func status(ctx context.Context, req *skel.Request, cfg *config) error {
	if err := statefile.Writable(filepath.Join(cfg.dataDir, cfg.space)); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "ipam.dataDir: no record can be written: %w", err)
	}
	if _, err := ranges.ReadDNS(cfg.resolvConf); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	s := &session{place: cfg.place}
	if err := s.connect(ctx); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	if cfg.onStoreDown != "warn" && cfg.onStoreDown != "fail" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	err := s.cluster.probe(ctx)
	if err != nil && cfg.onStoreDown == "fail" {
		return cni.Errorf(cni.CodeUnavailable, "cannot reach the leases: %w", err)
	}
	if err != nil {
		req.Warn("cannot reach the leases: %v", err)
	}
	return nil
}

// allocation is the state of an ADD or of one attachment's import.
type allocation struct {
	session session
	req     *skel.Request
	cfg     *config
	record  record
}

const maxMisses = 64 // number of taken addresses that are tried before all leases are listed

// allocate reserves the requested address of set n or, without a request, the first free candidate.
func (a *allocation) allocate(ctx context.Context, n int, set ranges.Set) (netip.Addr, error) {
	if asked := a.cfg.requested[n]; asked.Addr.IsValid() {
		err := a.reserve(ctx, set, asked.Addr)
		if errors.Is(err, errTaken) {
			owner := "an unknown owner"
			if holder, ok, _ := a.session.cluster.getLease(ctx, nameOf(a.session.space, asked.Addr)); ok {
				owner = holder.String()
			} else if e, ok := findEntry(a.session.pools, a.session.space, asked.Addr); ok {
				owner = fmt.Sprintf("a container that uses whereabouts, pod %q", e.Pod)
			}
			err = cni.Errorf(cni.CodeConflict, "%s: requested IP address %s is not available in range set %s: "+
				"%w for %s",
				asked.Key, asked.Addr, set, err, owner)
		}
		return asked.Addr, err
	}
	order := candidates(set, a.cfg.seedOf(a.req.Attachment, set))
	misses := 0
	for addr := range order {
		if err := a.reserve(ctx, set, addr); !errors.Is(err, errTaken) {
			return addr, err
		}
		if misses++; misses == maxMisses {
			break
		}
	}
	all, now, err := a.session.cluster.list(ctx, a.session.space, "")
	if err != nil {
		return netip.Addr{}, err
	}
	taken := map[string]bool{}
	for _, l := range all {
		taken[l.name] = true
	}
	for addr := range order {
		if taken[nameOf(a.session.space, addr)] {
			continue
		}
		if err := a.reserve(ctx, set, addr); !errors.Is(err, errTaken) {
			return addr, err
		}
	}
	return a.allocateReclaimed(ctx, n, all, now)
}

// allocateReclaimed reclaims leases of deleted nodes in set n and reserves one of their addresses. If it finds none,
// its error contains the number of leases in the set and the reason why nothing was reclaimed.
func (a *allocation) allocateReclaimed(ctx context.Context, n int, all []lease, now time.Time) (netip.Addr, error) {
	set := a.cfg.sets[n]
	held := slices.DeleteFunc(slices.Clone(all), func(l lease) bool {
		addr, _ := addressOf(l.name)
		_, isInSet := set.RangeOf(addr)
		return !isInSet
	})
	reason := `"reclaim" is "never"`
	if a.cfg.reclaims {
		var free []netip.Addr
		free, reason = a.reclaim(ctx, held, now)
		for _, addr := range free {
			if err := a.reserve(ctx, set, addr); !errors.Is(err, errTaken) {
				return addr, err
			}
		}
	}
	if a.session.guard != "" {
		reason += "; others are allocated by " + a.session.guard
	}
	return netip.Addr{}, cni.Errorf(cni.CodeTryAgain, "no IP addresses available in range set %d (%s): %d of its %s "+
		"are held, %s; kubectl get addresses lists the owners", n, set, len(held), setSize(set), reason)
}

// reclaim releases leases of deleted nodes, at most maxReclaims, and returns their addresses. reason contains the
// number of such leases, and explains why others were not found or not released.
func (a *allocation) reclaim(ctx context.Context, held []lease, now time.Time) (free []netip.Addr, reason string) {
	foreign := slices.DeleteFunc(slices.Clone(held), func(l lease) bool { return l.Node == a.session.node })
	orphaned, skipped, err := a.session.cluster.orphanedLeases(ctx, foreign, now, maxNodeLookups)
	reason = fmt.Sprintf("%d belong to deleted nodes", len(orphaned))
	if skipped > 0 {
		reason += fmt.Sprintf(", and %d nodes were not looked up; run cluster-local reclaim to check all", skipped)
	}
	if err != nil {
		orphaned = nil
	}
	for _, l := range orphaned[:min(len(orphaned), maxReclaims)] {
		if err = a.session.releaseOrphan(ctx, l); err != nil {
			break
		}
		a.req.Warn("reclaimed %s from %s because its node is deleted", l.name, l)
		addr, _ := addressOf(l.name)
		free = append(free, addr)
	}
	if err != nil {
		reason += fmt.Sprintf(", and could not be reclaimed: %v", err)
	}
	return free, reason
}

// reserve creates a lease for addr and, with a guard, an entry in whereabouts' pool. It returns errTaken if the lease
// or the entry already exists.
func (a *allocation) reserve(ctx context.Context, set ranges.Set, addr netip.Addr) error {
	if _, isAllocated := findEntry(a.session.pools, a.session.space, addr); isAllocated {
		return errTaken
	}
	l, err := a.request(ctx, addr)
	if err != nil || a.session.guard == "" {
		return err
	}
	r, _ := set.RangeOf(addr)
	if err = a.session.cluster.guard(ctx, a.session.pools, l, r.Subnet); errors.Is(err, errTaken) {
		if err := a.session.cluster.release(ctx, l); err != nil {
			return err
		}
		a.record.removeLease(l.name)
	} else if err != nil {
		a.record.Open = append(slices.Clone(a.record.Open), l.name) // the entry may be created after DEL
	}
	return err
}

// request creates a lease for addr. It first adds the name to the record's open names and writes the record. It
// updates a.record with the outcome, which the next write of the record saves.
func (a *allocation) request(ctx context.Context, addr netip.Addr) (lease, error) {
	l := lease{name: nameOf(a.session.space, addr), Space: a.session.space, Node: a.session.node,
		Network: a.req.Network, Container: a.req.ContainerID, IfName: a.req.IfName,
		Pod: a.cfg.pod, PodUID: a.cfg.podUID, Nonce: a.record.Nonce}
	before := a.record.Open
	a.record.Open = append(slices.Clone(before), l.name)
	if err := a.session.updateRecord(ctx, a.record); err != nil {
		return l, err
	}
	lost, err := a.session.cluster.reserve(ctx, &l)
	if err == nil {
		a.record.addLease(l)
	}
	if !lost {
		a.record.Open = before
	}
	return l, err
}
