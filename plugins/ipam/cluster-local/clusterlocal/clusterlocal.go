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

// session is what one call works with.
type session struct {
	place
	store      store      // nil until connect
	api        kubernetes // the store, for what the API has beside leases: nodes, and whereabouts' pools
	isKubelets bool       // the node's name is in the kubelet's own certificate
	pools      []pool     // of whereabouts, as they were at first: for a guard, and an import
}

// connect reads the kubeconfig, which says who we are where the configuration does not.
func (s *session) connect(ctx context.Context) error {
	if s.store != nil {
		return nil
	}
	if err := s.checkKubeconfig(); err != nil {
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
		return cni.Refuse("ipam.node", s.node, "is no name of a node; write the one that the cluster knows")
	}
	s.isKubelets = s.node == client.Node()
	s.api = kubernetes{client}
	s.store = s.api
	return nil
}

// checkNode refuses a name that the cluster does not know: others would take its leases for those of a deleted node.
// It asks once in each boot.
func (s *session) checkNode(ctx context.Context) error {
	if s.isKubelets {
		return nil
	}
	boot, err := sysctl.BootID()
	if err != nil || s.isMarked(known(s.node), boot) {
		return err
	}
	isThere, err := s.api.hasNode(ctx, s.node)
	if err != nil {
		return err
	}
	if !isThere {
		return cni.Refuse("ipam.node", s.node, "is no node of the cluster, or is out of service, and its leases would "+
			"be taken for those of a deleted node; write its name as kubectl get nodes has it")
	}
	return s.mark(ctx, known(s.node), boot)
}

// add takes an address from each set.
func add(ctx context.Context, req *skel.Request, cfg *config) (*cni.Result, error) {
	if len(cfg.sets)+len(cfg.static) == 0 {
		return nil, cni.Errorf(cni.CodeConfig, "runtimeConfig.ipRanges: no ranges to give addresses from")
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
	if err := a.connect(ctx); err != nil {
		return nil, err
	}
	if err := a.checkNode(ctx); err != nil {
		return nil, err
	}
	if a.guard != "" {
		var err error
		if a.pools, err = a.api.pools(ctx); err != nil {
			return nil, err
		}
	}
	if err := a.begin(ctx, a.record); err != nil {
		return nil, err
	}
	req.OnFail("give the addresses back", func(ctx context.Context) error { return a.end(ctx, a.record) })
	req.Step("reserve addresses")
	var ips []cni.IP
	for i, set := range cfg.sets {
		addr, err := a.take(ctx, i, set)
		if err != nil {
			return nil, err
		}
		r, _ := set.Find(addr)
		ips = append(ips, cni.IP{Address: netip.PrefixFrom(addr, r.Subnet.Bits()), Gateway: r.Gateway})
	}
	if err := a.keep(ctx, a.record); err != nil {
		return nil, err
	}
	req.Step("look for late requests")
	a.sweep(ctx)
	return &cni.Result{IPs: append(ips, cfg.static...), Routes: cfg.routes, DNS: dns}, nil
}

// del releases what the attachment's record names or, without one, those addresses of prevResult that are its own.
func del(ctx context.Context, req *skel.Request, p place) error {
	s := &session{place: p}
	r, ok, err := s.records().Get(req.Attachment.Hash())
	if err != nil {
		return err
	}
	switch {
	case ok:
		if err = s.connect(ctx); err == nil {
			err = s.end(ctx, r)
		}
	case req.PrevResult != nil && len(req.PrevResult.IPs) > 0 || s.guard != "":
		err = s.releaseOwn(ctx, req)
	}
	if !ok && err == nil {
		err = s.forget(ctx, req.Attachment)
	}
	if err == nil {
		s.sweep(ctx)
	}
	return err
}

// releaseOwn releases the addresses of prevResult that the store has for the attachment.
func (s *session) releaseOwn(ctx context.Context, req *skel.Request) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	var has []netip.Addr
	if req.PrevResult != nil {
		for _, ip := range req.PrevResult.IPs {
			has = append(has, ip.Address.Addr().Unmap())
		}
	}
	errs := []error{s.unguard(ctx, req.Attachment, has)}
	for _, addr := range has {
		name := nameOf(s.space, addr)
		l, ok, err := s.store.held(ctx, name)
		if err == nil && ok && l.Node == s.node && l.attachment() == req.Attachment {
			err = s.store.release(ctx, l)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// unguard gives an attachment's addresses back to the nodes that still run whereabouts.
func (s *session) unguard(ctx context.Context, a cni.Attachment, has []netip.Addr) error {
	if s.guard == "" {
		return nil
	}
	return s.api.unguard(ctx, s.space, a, has)
}

// check verifies that the attachment has its leases, and those of its result that are of our ranges.
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
	var held []netip.Addr
	for _, name := range r.Held {
		l, ok, err := s.store.held(ctx, name)
		addr, _ := addressOf(name)
		switch {
		case err != nil:
			return err
		case !ok:
			return cni.Drift("%s: the API server has no %s %s: it was deleted", addr, kind, name)
		case l.Nonce != r.Nonce:
			return cni.Drift("%s is reserved for %s", addr, l)
		}
		held = append(held, addr)
	}
	return ranges.Verify(cfg.sets, req.PrevResult, held)
}

// gc ends the records of attachments that are not valid. In each boot it asks the store once what else the node has.
func gc(ctx context.Context, req *skel.Request, p place) error {
	s := &session{place: p}
	boot, err := sysctl.BootID()
	if err != nil {
		return err
	}
	var strays []lease
	isListed := s.isMarked(listed(req.Network), boot)
	if !isListed {
		if err := s.connect(ctx); err != nil {
			return err
		}
		if strays, _, err = s.store.list(ctx, s.space, s.node); err != nil {
			return err
		}
	}
	kept, err := s.records().List()
	errs := []error{err}
	for _, k := range kept {
		if req.Valid.Excludes(k.Record.Attachment) {
			if err := s.connect(ctx); err != nil {
				return err
			}
			errs = append(errs, s.end(ctx, k.Record))
		}
	}
	for _, l := range strays {
		if req.Valid.Excludes(l.attachment()) {
			errs = append(errs, s.unguard(ctx, l.attachment(), addrsOf([]string{l.name})),
				s.store.release(ctx, l))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.sweep(ctx)
	if isListed {
		return nil
	}
	return s.mark(ctx, listed(req.Network), boot)
}

// probeTime is how long STATUS waits for the store.
const probeTime = 2 * time.Second

// status says whether ADD could begin. It asks the API server only when it is told to: a runtime calls it every few
// seconds, and an error makes the node not ready, also for the containers that have their addresses.
func status(ctx context.Context, req *skel.Request, cfg *config) error {
	if err := statefile.Writable(filepath.Join(cfg.dataDir, cfg.space)); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "ipam.dataDir: no record can be written: %w", err)
	}
	if _, err := ranges.ReadDNS(cfg.resolvConf); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	s := &session{place: cfg.place}
	if err := s.connect(ctx); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%s: %w", s.keys.kubeconfig, err)
	}
	if cfg.onStoreDown != "warn" && cfg.onStoreDown != "fail" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	err := s.store.probe(ctx)
	if err != nil && cfg.onStoreDown == "fail" {
		return cni.Errorf(cni.CodeUnavailable, "the leases cannot be reached: %w", err)
	}
	if err != nil {
		req.Warn("the leases cannot be reached: %v", err)
	}
	return nil
}

// allocation is an ADD's.
type allocation struct {
	session
	req    *skel.Request
	cfg    *config
	record record
}

// manyMisses is how many taken addresses are tried before the store is asked for all.
const manyMisses = 64

// take reserves the address that was asked for or else the first of the candidates that nobody has.
func (a *allocation) take(ctx context.Context, n int, set ranges.Set) (netip.Addr, error) {
	if asked := a.cfg.asked[n]; asked.Addr.IsValid() {
		err := a.reserve(ctx, set, asked.Addr)
		if errors.Is(err, errTaken) {
			holder, ok, _ := a.store.held(ctx, nameOf(a.space, asked.Addr))
			who := holder.String()
			if e, isLent := lent(a.pools, a.space, asked.Addr); isLent && !ok {
				who = fmt.Sprintf("a container of whereabouts, pod %q", e.Pod)
			}
			err = cni.Errorf(cni.CodeConflict, "%s: requested IP address %s is not available in range set %s: "+
				"%w for %s",
				asked.Key, asked.Addr, set, err, who)
		}
		return asked.Addr, err
	}
	order := candidates(set, a.cfg.seedOf(a.req.Attachment, set))
	misses := 0
	for addr := range order {
		if err := a.reserve(ctx, set, addr); !errors.Is(err, errTaken) {
			return addr, err
		}
		if misses++; misses == manyMisses {
			break
		}
	}
	all, now, err := a.store.list(ctx, a.space, "")
	if err != nil {
		return netip.Addr{}, err
	}
	taken := map[string]bool{}
	for _, l := range all {
		taken[l.name] = true
	}
	for addr := range order {
		if taken[nameOf(a.space, addr)] {
			continue
		}
		if err := a.reserve(ctx, set, addr); !errors.Is(err, errTaken) {
			return addr, err
		}
	}
	return a.takeFromDead(ctx, n, all, now)
}

// takeFromDead reserves an address that belonged to a node that is gone, or says that there is none.
func (a *allocation) takeFromDead(ctx context.Context, n int, all []lease, now time.Time) (netip.Addr, error) {
	set := a.cfg.sets[n]
	held := slices.DeleteFunc(slices.Clone(all), func(l lease) bool {
		addr, _ := addressOf(l.name)
		_, isOfSet := set.Find(addr)
		return !isOfSet
	})
	why := `"reclaim" is "never"`
	if a.cfg.reclaims {
		var free []netip.Addr
		free, why = a.reclaim(ctx, held, now)
		for _, addr := range free {
			if err := a.reserve(ctx, set, addr); !errors.Is(err, errTaken) {
				return addr, err
			}
		}
	}
	if a.guard != "" {
		why += "; others are lent by " + a.guard
	}
	return netip.Addr{}, cni.Errorf(cni.CodeTryAgain, "no IP addresses available in range set %d (%s): %d of its %s "+
		"are held, %s; kubectl get addresses says whose they are", n, set, len(held), sizeOf(set), why)
}

// reclaim releases leases of nodes that are gone. It says of how many that is known, and why others stay.
func (a *allocation) reclaim(ctx context.Context, held []lease, now time.Time) (free []netip.Addr, why string) {
	theirs := slices.DeleteFunc(slices.Clone(held), func(l lease) bool { return l.Node == a.node })
	found, left, err := a.api.dead(ctx, theirs, now, nodesAtOnce)
	why = fmt.Sprintf("%d are of nodes that are deleted", len(found))
	if left > 0 {
		why += fmt.Sprintf(", and %d nodes were not looked up: cluster-local reclaim does", left)
	}
	if err != nil {
		found = nil
	}
	for _, l := range found[:min(len(found), reclaimedAtOnce)] {
		if err = a.store.release(ctx, l); err != nil {
			break
		}
		a.req.Warn("took %s back from %s: its node is deleted", l.name, l)
		addr, _ := addressOf(l.name)
		free = append(free, addr)
	}
	if err != nil {
		why += fmt.Sprintf(", and could not be taken back: %v", err)
	}
	return free, why
}

// reserve asks for an address, with a guard also for whereabouts' consent.
func (a *allocation) reserve(ctx context.Context, set ranges.Set, addr netip.Addr) error {
	if _, isLent := lent(a.pools, a.space, addr); isLent {
		return errTaken
	}
	l, err := a.post(ctx, addr)
	if err != nil || a.guard == "" {
		return err
	}
	r, _ := set.Find(addr)
	if err = a.api.guard(ctx, a.pools, l, r.Subnet); errors.Is(err, errTaken) {
		if err := a.store.release(ctx, l); err != nil {
			return err
		}
		a.record.drop(l.name)
	}
	return err
}

// post asks for an address. That it does is written down before, and what came of it with the next write.
func (a *allocation) post(ctx context.Context, addr netip.Addr) (lease, error) {
	l := lease{name: nameOf(a.space, addr), Space: a.space, Node: a.node, Network: a.req.Network,
		Container: a.req.ContainerID, IfName: a.req.IfName, Pod: a.cfg.pod, PodUID: a.cfg.podUID, Nonce: a.record.Nonce}
	before := a.record.Open
	a.record.Open = append(slices.Clone(before), l.name)
	if err := a.keep(ctx, a.record); err != nil {
		return l, err
	}
	lost, err := a.store.reserve(ctx, &l)
	if err == nil {
		a.record.hold(l)
	}
	if !lost {
		a.record.Open = before
	}
	return l, err
}
