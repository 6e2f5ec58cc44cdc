package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// add takes an address from each set.
func add(ctx context.Context, req *skel.Request, cfg *config) (*cni.Result, error) {
	if len(cfg.sets) == 0 {
		return nil, cni.Errorf(cni.CodeConfig, "runtimeConfig.ipRanges: no ranges to give addresses from")
	}
	dns, err := readDNS(cfg.resolvConf)
	if err != nil {
		return nil, err
	}
	s, err := openStore(ctx, cfg.dataDir, req.Network, true)
	if err != nil {
		return nil, err
	}
	addrs, err := allocate(s, req, cfg)
	if err = errors.Join(err, s.close()); err != nil {
		return nil, err
	}
	return &cni.Result{IPs: resultIPs(cfg.sets, addrs), Routes: cfg.routes, DNS: dns}, nil
}

// del gives back whatever the interface holds, whatever the ranges are now.
func del(ctx context.Context, req *skel.Request) error {
	dataDir, err := parseDataDir(req)
	if err != nil {
		return err
	}
	return giveBack(ctx, dataDir, req.Network, ownerText(req.ContainerID, req.IfName), req.ContainerID)
}

// check verifies that the interface has its addresses, and that they are the
// ones in its result.
func check(ctx context.Context, req *skel.Request, cfg *config) error {
	s, err := openStore(ctx, cfg.dataDir, req.Network, false)
	var held []netip.Addr
	if s != nil && err == nil {
		held, err = s.heldBy(ownerText(req.ContainerID, req.IfName), req.ContainerID)
		err = errors.Join(err, s.close())
	}
	if err != nil {
		return err
	}
	if len(held) == 0 {
		return cni.Errorf(cni.CodeDrift, "no address is reserved for %s", req.Attachment)
	}
	return compare(req.PrevResult, cfg.sets, held)
}

// gc gives back the addresses of attachments that are not valid. Files that
// hold nothing go as well. Whatever else is not exactly what ADD writes stays:
// a container ID alone cannot be told from an administrator's word.
func gc(ctx context.Context, req *skel.Request) error {
	dataDir, err := parseDataDir(req)
	if err != nil {
		return err
	}
	s, err := openStore(ctx, dataDir, req.Network, false)
	if s == nil || err != nil {
		return err
	}
	if err := s.walk(); err != nil {
		return errors.Join(err, s.close())
	}
	var errs []error
	kept := []lease{}
	for _, l := range s.listed {
		id, ifName, ok := parseOwner(l.owner)
		a := cni.Attachment{Network: req.Network, ContainerID: id, IfName: ifName}
		if l.owner == "" || ok && cni.ValidName(id) && cni.ValidIfName(ifName) && !req.Valid.Has(a) {
			err := s.dir.Remove(l.addr.String())
			if err == nil {
				continue
			}
			errs = append(errs, err)
		}
		kept = append(kept, l)
	}
	s.listed = kept
	return errors.Join(append(errs, s.close())...)
}

// status says whether ADD could take addresses: the directory can be written
// and read. It waits for no lock and changes nothing.
//
// A range that is full is a warning unless the configuration asks for more:
// a runtime makes the whole node not ready of an error, and that would punish
// the containers that have their addresses.
func status(_ context.Context, req *skel.Request, cfg *config) error {
	if err := statefile.Writable(filepath.Join(cfg.dataDir, req.Network)); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "ipam.dataDir: no lease can be written: %w", err)
	}
	if _, err := readDNS(cfg.resolvConf); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	unreadable := func(err error) error {
		return cni.Errorf(cni.CodeUnavailable, "ipam.dataDir: the leases cannot be read: %w", err)
	}
	s, err := openUnlocked(cfg.dataDir, req.Network, false)
	if err != nil {
		return unreadable(err)
	}
	if s == nil {
		return nil
	}
	defer s.close()
	for i, set := range cfg.sets {
		free, err := s.hasFree(i, set)
		if err != nil {
			return unreadable(err)
		}
		if free {
			continue
		}
		err = cni.Errorf(cni.CodeUnavailable, "range set %d (%s): no address is left", i, set)
		if cfg.failWhenFull {
			return err
		}
		req.Warn("%v", err)
	}
	return nil
}

// hasFree looks for an address of a set that nobody has, in the order in which ADD
// tries them.
func (s *store) hasFree(n int, set rangeSet) (bool, error) {
	_, err := s.first(set.after(s.last(n)), func(addr netip.Addr) error {
		owner, err := s.owner(addr)
		if err == nil && owner != "" {
			err = errTaken
		}
		return err
	})
	if errors.Is(err, errNoneLeft) {
		return false, nil
	}
	return err == nil, err
}

// giveBack releases the addresses of the first owner that has any. A directory
// that is absent has none.
func giveBack(ctx context.Context, dataDir, network string, owners ...string) error {
	s, err := openStore(ctx, dataDir, network, false)
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

func resultIPs(sets []rangeSet, addrs []netip.Addr) []cni.IP {
	var ips []cni.IP
	for i, addr := range addrs {
		r, _ := sets[i].find(addr)
		ips = append(ips, cni.IP{Address: netip.PrefixFrom(addr, r.subnet.Bits()), Gateway: r.gateway})
	}
	return ips
}

// compare says which addresses of the result are of our ranges and not among
// those held.
func compare(result *cni.Result, sets []rangeSet, held []netip.Addr) error {
	if result == nil {
		return nil
	}
	var lost []netip.Addr
	for _, ip := range result.IPs {
		addr := ip.Address.Addr().Unmap()
		ours := slices.ContainsFunc(sets, func(s rangeSet) bool { _, ok := s.find(addr); return ok })
		if ours && !slices.Contains(held, addr) {
			lost = append(lost, addr)
		}
	}
	if lost == nil {
		return nil
	}
	return cni.Errorf(cni.CodeDrift, "prevResult: %s is not reserved for the attachment, which holds %s",
		join(lost), join(held))
}

func join[T fmt.Stringer](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = v.String()
	}
	return strings.Join(words, ", ")
}
