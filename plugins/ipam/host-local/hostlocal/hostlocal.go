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

// add takes an address from each set.
func add(ctx context.Context, req *skel.Request, cfg *config) (result *cni.Result, err error) {
	if len(cfg.sets) == 0 {
		return nil, cni.Errorf(cni.CodeConfig, "runtimeConfig.ipRanges: no ranges to give addresses from")
	}
	dns, err := ranges.ReadDNS(cfg.resolvConf)
	if err != nil {
		return nil, err
	}
	s, err := openLeaseDir(ctx, cfg.dataDir, req.Network, dirMode)
	if err != nil {
		return nil, err
	}
	s.note = s.noteOf(req.Netns, ownerText(req.ContainerID, req.IfName))
	defer func() { err = errors.Join(err, s.close()) }() // also after a panic: the roll-back waits for the lock
	ips, err := allocate(s, req, cfg)
	if err != nil {
		return nil, err
	}
	return &cni.Result{IPs: ips, Routes: cfg.routes, DNS: dns}, nil
}

// del releases whatever the interface holds, whatever the ranges are now.
func del(ctx context.Context, req *skel.Request) error {
	dataDir, err := parseDataDir(req)
	if err != nil {
		return err
	}
	return releaseAll(ctx, dataDir, req.Network, ownerText(req.ContainerID, req.IfName), req.ContainerID)
}

// check verifies that the interface has addresses, and those of its result that are of our ranges.
func check(ctx context.Context, req *skel.Request, cfg *config) error {
	s, err := openLeaseDir(ctx, cfg.dataDir, req.Network, 0)
	if err != nil {
		return err
	}
	var held []netip.Addr
	if s != nil {
		held, err = s.heldBy(ownerText(req.ContainerID, req.IfName), req.ContainerID)
		if err = errors.Join(err, s.close()); err != nil {
			return err
		}
	}
	if len(held) == 0 {
		return cni.Drift("no address is reserved for %s", req.Attachment)
	}
	return ranges.Verify(cfg.sets, req.PrevResult, held)
}

// gc releases the addresses of attachments that are not valid, and of nobody. What is not exactly
// as ADD writes it stays: a container ID alone cannot be told from an administrator's word.
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

// list lists the leases of the network or, without one, of all networks in the directory. The reference's files are
// like ours.
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

// status says whether ADD could take addresses, without a lock. A full set is a warning unless the configuration asks
// for more: an error makes the whole node not ready, also for the containers that have their addresses.
func status(_ context.Context, req *skel.Request, cfg *config) error {
	if err := statefile.Writable(filepath.Join(cfg.dataDir, req.Network)); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "ipam.dataDir: no lease can be written: %w", err)
	}
	if _, err := ranges.ReadDNS(cfg.resolvConf); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	unreadable := func(err error) error {
		return cni.Errorf(cni.CodeUnavailable, "ipam.dataDir: the leases cannot be read: %w", err)
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
		order := set.After(s.last(i))
		_, err := s.first(order, s.verifyFree)
		if errors.Is(err, errNoneLeft) && cfg.reclaim && s.mayReclaim(order) {
			continue
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, errNoneLeft) {
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

// allocation is an ADD's.
type allocation struct {
	*leaseDir
	req   *skel.Request
	cfg   *config
	owner string
	stuck map[int]bool // the sets that gave the pod the address that it had
}

// podKey is under what the pod's addresses are remembered: two interfaces have two.
func (a *allocation) podKey() string { return a.cfg.pod + "\n" + a.req.IfName }

// allocate takes an address from each set, or none at all.
func allocate(s *leaseDir, req *skel.Request, cfg *config) ([]cni.IP, error) {
	a := allocation{s, req, cfg, ownerText(req.ContainerID, req.IfName), map[int]bool{}}
	held, err := s.heldBy(a.owner, req.ContainerID)
	if err != nil {
		return nil, err
	}
	if len(held) > 0 && cfg.reclaim {
		if stale := s.ofEarlierBoots(held...); len(stale) == len(held) {
			if err := s.takeBack(req, stale); err != nil {
				return nil, err
			}
			held = nil
		}
	}
	if len(held) > 0 {
		return nil, cni.Errorf(cni.CodeExists,
			"%s has been allocated to %s, duplicate allocation is not allowed; DEL gives it back",
			ranges.Join(held, ", "), req.Attachment)
	}
	req.Step("reserve the addresses")
	req.OnFail("give the addresses back", func(ctx context.Context) error {
		return releaseAll(ctx, cfg.dataDir, req.Network, a.owner)
	})
	ips := make([]cni.IP, len(cfg.sets))
	for i, set := range cfg.sets {
		addr, err := a.take(i, set)
		if err != nil {
			return nil, err
		}
		r, _ := set.Find(addr)
		ips[i] = cni.IP{Address: netip.PrefixFrom(addr, r.Subnet.Bits()), Gateway: r.Gateway}
	}
	for i, ip := range ips {
		if a.stuck[i] { // who comes next gets no neighbour of it, which another pod may come back for
			continue
		}
		if err := s.setLast(i, ip.Address.Addr()); err != nil {
			return nil, err
		}
	}
	if cfg.pod != "" {
		if err := s.remember(a.podKey(), ips); err != nil {
			req.Warn("ipam.sticky: %v", err)
		}
	}
	return ips, nil
}

// take reserves the address that was asked for or else the first that nobody has after the one given away last.
func (a *allocation) take(n int, set ranges.Set) (netip.Addr, error) {
	if asked := a.cfg.asked[n]; asked.Addr.IsValid() {
		err := a.claim(asked.Addr)
		if errors.Is(err, errTaken) {
			owner, _ := a.leaseDir.owner(asked.Addr) // reserve has read it
			err = cni.Errorf(cni.CodeConflict, "%s: requested IP address %s is not available in range set %s: "+
				"%w for %s", asked.Key, asked.Addr, set, err, ownerInWords(owner))
		}
		return asked.Addr, err
	}
	if a.cfg.pod != "" {
		addr := a.remembered(a.podKey(), n)
		if _, ok := set.Find(addr); ok && !set.IsGateway(addr) {
			if err := a.claim(addr); !errors.Is(err, errTaken) {
				a.stuck[n] = true
				return addr, err
			}
		}
	}
	order := set.After(a.last(n))
	reserve := func(addr netip.Addr) error { return a.reserve(addr, a.owner) }
	addr, err := a.first(order, reserve)
	why := `"reclaim" is false`
	if errors.Is(err, errNoneLeft) && a.cfg.reclaim {
		var free netip.Addr
		if free, why = a.reclaim(a.req, order); free.IsValid() {
			addr, err = free, reserve(free)
		}
	}
	if errors.Is(err, errNoneLeft) && !a.walked() {
		// The index may have addresses whose files lost their text.
		if err = a.walk(nil); err == nil {
			addr, err = a.first(order, reserve)
		}
	}
	if errors.Is(err, errNoneLeft) {
		files, owners := a.index.usage(set)
		err = cni.Errorf(cni.CodeTryAgain, "failed to allocate for range %d: %w: %s: files %d, owners %d, in %s; "+
			"none of the %d was taken back: %s; hawser gc says whose they are, and hawser gc --yes releases those "+
			"that no runtime knows", n, err, set, files, owners, a.dir.Path(), files, why)
	}
	return addr, err
}

// claim reserves one address, also where a lease of an earlier boot has it.
func (a *allocation) claim(addr netip.Addr) error {
	err := a.reserve(addr, a.owner)
	if !errors.Is(err, errTaken) || !a.cfg.reclaim {
		return err
	}
	stale := a.ofEarlierBoots(addr)
	if len(stale) == 0 {
		return err
	}
	if err := a.takeBack(a.req, stale); err != nil {
		return err
	}
	return a.reserve(addr, a.owner)
}

var errNoneLeft = errors.New("no IP addresses available in range set")

// manyMisses is how many taken addresses are tried before the index is asked for the others.
const manyMisses = 16

// first returns the first address that nobody has: try says errTaken of the others.
func (s *leaseDir) first(order iter.Seq[netip.Addr], try func(netip.Addr) error) (netip.Addr, error) {
	var taken addrSet
	misses := 0
	for addr := range order {
		if taken.has(addr) {
			continue
		}
		err := try(addr)
		if !errors.Is(err, errTaken) {
			return addr, err
		}
		if misses++; misses == manyMisses && s.loadIndex() == nil {
			if taken, err = s.index.taken(); err != nil {
				return addr, err
			}
		}
	}
	return netip.Addr{}, errNoneLeft
}

// ownerInWords is who owns an address, for messages.
func ownerInWords(owner string) string {
	if id, ifName, ok := parseOwner(owner); ok {
		return fmt.Sprintf("container %q, interface %q", id, ifName)
	}
	return fmt.Sprintf("%.64q", owner)
}

// releaseAll releases the addresses of the first owner that has any.
func releaseAll(ctx context.Context, dataDir, network string, owners ...string) error {
	s, err := openLeaseDir(ctx, dataDir, network, 0)
	if s == nil || err != nil {
		return err
	}
	held, err := s.heldBy(owners...)
	errs := []error{err}
	for _, addr := range held {
		errs = append(errs, s.release(addr))
	}
	return errors.Join(append(errs, s.close())...)
}
