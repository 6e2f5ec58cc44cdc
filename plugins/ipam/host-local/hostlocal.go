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
	s, err := openLeaseDir(ctx, cfg.dataDir, req.Network, true)
	if err != nil {
		return nil, err
	}
	ips, err := allocate(s, req, cfg)
	if err = errors.Join(err, s.close()); err != nil {
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
	s, err := openLeaseDir(ctx, cfg.dataDir, req.Network, false)
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
		return cni.Errorf(cni.CodeDrift, "no address is reserved for %s", req.Attachment)
	}
	if req.PrevResult == nil {
		return nil
	}
	var lost []netip.Addr
	for _, ip := range req.PrevResult.IPs {
		addr := ip.Address.Addr().Unmap()
		isOurs := slices.ContainsFunc(cfg.sets, func(s rangeSet) bool { _, ok := s.find(addr); return ok })
		if isOurs && !slices.Contains(held, addr) {
			lost = append(lost, addr)
		}
	}
	if lost != nil {
		return cni.Errorf(cni.CodeDrift, "prevResult: %s is not reserved for the attachment, which holds %s",
			join(lost), join(held))
	}
	return nil
}

// gc releases the addresses of attachments that are not valid, and of nobody. What is not exactly
// as ADD writes it stays: a container ID alone cannot be told from an administrator's word.
func gc(ctx context.Context, req *skel.Request) error {
	dataDir, err := parseDataDir(req)
	if err != nil {
		return err
	}
	s, err := openLeaseDir(ctx, dataDir, req.Network, false)
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

// status says whether ADD could take addresses: the directory can be written
// and read. It waits for no lock and changes nothing.
//
// A full set is a warning, unless the configuration asks for more: a runtime makes the whole
// node not ready of an error, also for the containers that have their addresses.
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
	hasNoOwner := func(addr netip.Addr) error {
		owner, err := s.owner(addr)
		if err == nil && owner != "" {
			err = errTaken
		}
		return err
	}
	for i, set := range cfg.sets {
		_, err := s.first(set.after(s.last(i)), hasNoOwner)
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

// releaseAll releases the addresses of the first owner that has any.
func releaseAll(ctx context.Context, dataDir, network string, owners ...string) error {
	s, err := openLeaseDir(ctx, dataDir, network, false)
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

func join[T fmt.Stringer](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = v.String()
	}
	return strings.Join(words, ", ")
}
