package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// add takes an address from each set.
func add(ctx context.Context, req *skel.Request, cfg *config) (*cni.Result, error) {
	if len(cfg.sets) == 0 {
		return nil, cni.Errorf(cni.CodeConfig, "runtimeConfig.ipRanges: no ranges to give addresses from")
	}
	asked, err := assign(cfg.sets, cfg.asked)
	if err != nil {
		return nil, err
	}
	dns, err := readDNS(cfg.resolvConf)
	if err != nil {
		return nil, err
	}
	req.Step("wait for the lock")
	l, err := lock(ctx, cfg.dataDir, req.Network, true)
	if err != nil {
		return nil, err
	}
	req.Step("reserve")
	addrs, err := allocate(l, req.Attachment, cfg.sets, asked)
	if err == nil {
		req.OnFail("give back "+join(addrs), func(ctx context.Context) error {
			return giveBack(ctx, cfg.dataDir, req.Network, ownerText(req.ContainerID, req.IfName))
		})
	}
	if err = errors.Join(err, l.close()); err != nil {
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
// ones it was told.
func check(ctx context.Context, req *skel.Request, cfg *config) error {
	l, err := lock(ctx, cfg.dataDir, req.Network, false)
	if errors.Is(err, fs.ErrNotExist) {
		return cni.Errorf(cni.CodeDrift, "no address is reserved for %s: %w", req.Attachment, err)
	}
	if err != nil {
		return err
	}
	held, err := heldBy(l, req.Attachment)
	if err = errors.Join(err, l.close()); err != nil {
		return err
	}
	if len(held) == 0 {
		return cni.Errorf(cni.CodeDrift, "no address is reserved for %s", req.Attachment)
	}
	return compare(req.PrevResult, cfg.sets, held)
}

// gc gives back the addresses of attachments that are not valid. Files that
// hold nothing go as well; whatever else is not exactly what ADD writes stays:
// a container ID alone cannot be told from an administrator's word.
func gc(ctx context.Context, req *skel.Request) error {
	dataDir, err := parseDataDir(req)
	if err != nil {
		return err
	}
	l, err := lock(ctx, dataDir, req.Network, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	errs := []error{l.read()}
	for _, lease := range l.listed {
		id, ifName, ok := parseOwner(lease.owner)
		a := cni.Attachment{Network: req.Network, ContainerID: id, IfName: ifName}
		switch {
		case lease.owner == "":
			errs = append(errs, l.discard(lease.addr))
		case ok && cni.ValidName(id) && cni.ValidIfName(ifName) && !req.Valid.Has(a):
			errs = append(errs, l.release(lease.addr, lease.owner))
		}
	}
	return errors.Join(append(errs, l.close())...)
}

// lock opens a network's directory for one call.
func lock(ctx context.Context, dataDir, network string, create bool) (*leases, error) {
	l, err := openLeases(ctx, dataDir, network, create)
	switch {
	case errors.Is(err, statefile.ErrBusy):
		return nil, cni.Errorf(cni.CodeTryAgain, "network %q: waited %s: %w", network, lockWait, err)
	case errors.Is(err, unix.ENAMETOOLONG) && !create:
		return nil, fs.ErrNotExist // and so it holds nothing
	case err != nil:
		return nil, fmt.Errorf("network %q: %w", network, err)
	}
	return l, nil
}

// giveBack releases what the first of the owners that has anything holds. A
// directory that is absent holds nothing.
func giveBack(ctx context.Context, dataDir, network string, owners ...string) error {
	l, err := lock(ctx, dataDir, network, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, owner := range owners {
		held, err := l.of(owner)
		errs = append(errs, err, releaseAll(l, held, owner))
		if len(held) > 0 {
			break
		}
	}
	return errors.Join(append(errs, l.close())...)
}

func releaseAll(l *leases, addrs []netip.Addr, owner string) error {
	var errs []error
	for _, addr := range addrs {
		errs = append(errs, l.release(addr, owner))
	}
	return errors.Join(errs...)
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
	ours := map[netip.Addr]bool{}
	for _, addr := range held {
		ours[addr] = true
	}
	var lost []netip.Addr
	for _, ip := range result.IPs {
		addr := ip.Address.Addr().Unmap()
		for _, set := range sets {
			if _, ok := set.find(addr); ok && !ours[addr] {
				lost = append(lost, addr)
			}
		}
	}
	if lost != nil {
		return cni.Errorf(cni.CodeDrift, "prevResult: %s is not reserved for the attachment, which holds %s", join(lost), join(held))
	}
	return nil
}

func join[T fmt.Stringer](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = v.String()
	}
	return strings.Join(words, ", ")
}
