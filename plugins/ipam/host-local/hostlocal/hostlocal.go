package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

func add(ctx context.Context, req *skel.Request, cfg *config) (result *cni.Result, err error) {
	if len(cfg.sets) == 0 {
		return nil, cni.Errorf(cni.CodeConfig, "runtimeConfig.ipRanges: no ranges to assign addresses from")
	}
	dns, err := ranges.ReadDNS(cfg.resolvConf)
	if err != nil {
		return nil, err
	}
	s, err := openLeaseDir(ctx, cfg.dataDir, req.Network, dirMode)
	if err != nil {
		return nil, err
	}
	s.note = s.ownerNote(req.Netns, ownerText(req.ContainerID, req.IfName))
	defer func() { err = errors.Join(err, s.close()) }() // also after a panic, because the rollback waits for the lock
	ips, err := allocate(s, req, cfg)
	if err != nil {
		return nil, err
	}
	return &cni.Result{IPs: ips, Routes: cfg.routes, DNS: dns}, nil
}

// del releases all addresses of the attachment. It does not depend on the configured ranges.
func del(ctx context.Context, req *skel.Request) error {
	dataDir, err := parseDataDir(req)
	if err != nil {
		return err
	}
	return releaseAll(ctx, dataDir, req.Network, ownerText(req.ContainerID, req.IfName), req.ContainerID)
}

// check verifies that the attachment holds addresses, and that they are the addresses of prevResult in the ranges.
func check(ctx context.Context, req *skel.Request, cfg *config) error {
	s, err := openLeaseDir(ctx, cfg.dataDir, req.Network, 0)
	if err != nil {
		return err
	}
	var held []netip.Addr
	if s != nil {
		held, err = s.findLeases(ownerText(req.ContainerID, req.IfName), req.ContainerID)
		if err = errors.Join(err, s.close()); err != nil {
			return err
		}
	}
	if len(held) == 0 {
		return cni.Drift("no address is reserved for %s", req.Attachment)
	}
	return ranges.Verify(cfg.sets, req.PrevResult, held)
}

// gc releases the addresses of attachments that are not valid, and removes lease files without an owner. Files with
// another format than ADD's stay, because a container ID without an interface could be an administrator's text.
func gc(ctx context.Context, req *skel.Request) error {
	dataDir, err := parseDataDir(req)
	if err != nil {
		return err
	}
	s, err := openLeaseDir(ctx, dataDir, req.Network, 0)
	if s == nil || err != nil {
		return err
	}
	err = s.walk(func(owner string) bool {
		id, ifName, ok := parseOwner(owner)
		if !ok || !cni.ValidName(id) || !cni.ValidIfName(ifName) {
			return owner == ""
		}
		return !req.Valid.Has(cni.Attachment{Network: req.Network, ContainerID: id, IfName: ifName})
	})
	return errors.Join(err, s.close())
}

// list returns the leases of the network or, without a network, of all networks in the directory. They include leases
// of the reference plugin, which have the same format.
func list(_ context.Context, req *skel.Request) (all []cni.Holding, err error) {
	dataDir, err := parseDataDir(req)
	networks := []string{req.Network}
	if req.Network == "" && err == nil {
		var entries []fs.DirEntry
		if entries, err = os.ReadDir(dataDir); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		networks = nil
		for _, e := range entries {
			if e.IsDir() {
				networks = append(networks, e.Name())
			}
		}
	}
	errs := []error{err}
	for _, network := range networks {
		s, err := openUnlocked(dataDir, network, 0)
		if errs = append(errs, err); s == nil {
			continue
		}
		leases, err := s.list()
		all, errs = append(all, leases...), append(errs, err, s.close())
	}
	return all, errors.Join(errs...)
}

// status checks, without the lock, whether ADD could allocate addresses. A full set is only a warning unless
// statusOnExhaustion is "fail", because an error makes the whole node not ready, which also affects containers that
// already have addresses.
func status(_ context.Context, req *skel.Request, cfg *config) error {
	if err := statefile.Writable(filepath.Join(cfg.dataDir, req.Network)); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "ipam.dataDir: cannot write leases: %w", err)
	}
	if _, err := ranges.ReadDNS(cfg.resolvConf); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	unreadable := func(err error) error {
		return cni.Errorf(cni.CodeUnavailable, "ipam.dataDir: cannot read leases: %w", err)
	}
	s, err := openUnlocked(cfg.dataDir, req.Network, 0)
	if err != nil {
		return unreadable(err)
	}
	if s == nil {
		return nil
	}
	defer s.close()
	for i, set := range cfg.sets {
		order := set.Candidates(s.lastAddress(i))
		_, err := s.firstFree(order, s.verifyFree)
		switch {
		case err == nil, errors.Is(err, errFull) && cfg.reclaim && s.mayReclaim(order):
			continue
		case !errors.Is(err, errFull):
			return unreadable(err)
		}
		err = cni.Errorf(cni.CodeUnavailable, "range set %d (%s): no address is left", i, set)
		if cfg.failWhenFull {
			return err
		}
		req.Warn("%v", err)
	}
	return nil
}

// allocation is the state of an ADD.
type allocation struct {
	*leaseDir
	req      *skel.Request
	cfg      *config
	owner    string
	isSticky map[int]bool // sets from which the pod got its last address again
}

// podKey identifies the pod's interface in the sticky table.
func (a *allocation) podKey() string { return a.cfg.pod + "\n" + a.req.IfName }

// allocate allocates an address from each set. After an error, the rollback releases all of them.
func allocate(s *leaseDir, req *skel.Request, cfg *config) ([]cni.IP, error) {
	a := allocation{s, req, cfg, ownerText(req.ContainerID, req.IfName), map[int]bool{}}
	held, err := s.findLeases(a.owner, req.ContainerID)
	if err != nil {
		return nil, err
	}
	if len(held) > 0 && cfg.reclaim {
		if stale := s.leasesOfEarlierBoots(held...); len(stale) == len(held) {
			if err := s.releaseStale(req, stale); err != nil {
				return nil, err
			}
			held = nil
		}
	}
	if len(held) > 0 {
		return nil, cni.Errorf(cni.CodeExists,
			"%s has been allocated to %s, duplicate allocation is not allowed; DEL releases it",
			ranges.Join(held, ", "), req.Attachment)
	}
	req.Step("reserve the addresses")
	req.OnFail("release the addresses", func(ctx context.Context) error {
		return releaseAll(ctx, cfg.dataDir, req.Network, a.owner)
	})
	ips := make([]cni.IP, len(cfg.sets))
	for i, set := range cfg.sets {
		addr, err := a.allocateOne(i, set)
		if err != nil {
			return nil, err
		}
		r, _ := set.RangeOf(addr)
		ips[i] = cni.IP{Address: netip.PrefixFrom(addr, r.Subnet.Bits()), Gateway: r.Gateway}
	}
	for i, ip := range ips {
		if a.isSticky[i] { // the next addresses may be other pods' sticky ones, so the next search must not begin here
			continue
		}
		if err := s.setLastAddress(i, ip.Address.Addr()); err != nil {
			return nil, err
		}
	}
	if cfg.pod != "" {
		if err := s.setSticky(a.podKey(), ips); err != nil {
			req.Warn("ipam.sticky: %v", err)
		}
	}
	return ips, nil
}

// allocateOne reserves the requested address of set n. Without a request, it reserves the pod's last address or, if
// that is not free, the first free address after the last assigned one.
func (a *allocation) allocateOne(n int, set ranges.Set) (netip.Addr, error) {
	if request := a.cfg.requested[n]; request.Addr.IsValid() {
		err := a.reserveOrReclaim(request.Addr)
		if errors.Is(err, errTaken) {
			owner, _ := a.leaseDir.owner(request.Addr) // reserve has read it without an error
			err = cni.Errorf(cni.CodeConflict, "%s: requested IP address %s is not available in range set %s: "+
				"%w for %s", request.Key, request.Addr, set, err, describeOwner(owner))
		}
		return request.Addr, err
	}
	if a.cfg.pod != "" {
		addr := a.stickyAddress(a.podKey(), n)
		if _, ok := set.RangeOf(addr); ok && !set.IsGateway(addr) {
			if err := a.reserveOrReclaim(addr); !errors.Is(err, errTaken) {
				a.isSticky[n] = true
				return addr, err
			}
		}
	}
	order := set.Candidates(a.lastAddress(n))
	reserve := func(addr netip.Addr) error { return a.reserve(addr, a.owner) }
	addr, err := a.firstFree(order, reserve)
	reason := `"reclaim" is false`
	if errors.Is(err, errFull) && a.cfg.reclaim {
		var free netip.Addr
		if free, reason = a.reclaim(a.req, order); free.IsValid() {
			addr, err = free, reserve(free)
		}
	}
	if errors.Is(err, errFull) && !a.hasWalked() {
		// The index can contain addresses whose files have become empty.
		if err = a.walk(nil); err == nil {
			addr, err = a.firstFree(order, reserve)
		}
	}
	if errors.Is(err, errFull) {
		files, owners := a.index.usage(set)
		err = cni.Errorf(cni.CodeTryAgain, "failed to allocate for range %d: %w: %s: %d leases of %d owners in %s; "+
			"none can be reclaimed: %s; hawser gc lists the owners, hawser gc --yes releases leases that no runtime "+
			"knows",
			n, err, set, files, owners, a.dir.Path(), reason)
	}
	return addr, err
}

// reserveOrReclaim reserves an address. If the address has a lease from an earlier boot, it releases that lease.
func (a *allocation) reserveOrReclaim(addr netip.Addr) error {
	err := a.reserve(addr, a.owner)
	if !errors.Is(err, errTaken) || !a.cfg.reclaim {
		return err
	}
	stale := a.leasesOfEarlierBoots(addr)
	if len(stale) == 0 {
		return err
	}
	if err := a.releaseStale(a.req, stale); err != nil {
		return err
	}
	return a.reserve(addr, a.owner)
}

var errFull = errors.New("no IP addresses available in range set")

const maxMisses = 16 // number of taken addresses that are tried before all taken addresses are read from the index

// firstFree returns the first address for which try does not return errTaken, with the error of try, or errFull.
func (s *leaseDir) firstFree(order iter.Seq[netip.Addr], try func(netip.Addr) error) (netip.Addr, error) {
	var taken addrSet
	misses := 0
	for addr := range order {
		if taken.contains(addr) {
			continue
		}
		err := try(addr)
		if !errors.Is(err, errTaken) {
			return addr, err
		}
		if misses++; misses == maxMisses && s.loadIndex() == nil {
			if taken, err = s.index.addresses(); err != nil {
				return addr, err
			}
		}
	}
	return netip.Addr{}, errFull
}

// describeOwner describes the owner of an address, for messages.
func describeOwner(owner string) string {
	if id, ifName, ok := parseOwner(owner); ok {
		return fmt.Sprintf("container %q, interface %q", id, ifName)
	}
	return fmt.Sprintf("%.64q", owner)
}

// releaseAll releases the addresses of the first of the owners that has any.
func releaseAll(ctx context.Context, dataDir, network string, owners ...string) error {
	s, err := openLeaseDir(ctx, dataDir, network, 0)
	if s == nil || err != nil {
		return err
	}
	held, err := s.findLeases(owners...)
	errs := []error{err}
	for _, addr := range held {
		errs = append(errs, s.release(addr))
	}
	return errors.Join(append(errs, s.close())...)
}
