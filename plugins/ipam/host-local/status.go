package main

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"path/filepath"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// status says whether ADD could take addresses: the ranges are right and the
// directory can be written. It waits for no lock and changes nothing.
//
// A range that is full is a warning unless the configuration asks for more:
// a runtime makes the whole node not ready of an error, and that would punish
// the containers that have their addresses.
func status(_ context.Context, req *skel.Request, cfg *config) error {
	if err := statefile.Writable(filepath.Join(cfg.dataDir, req.Network)); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "ipam.dataDir: no reservation can be written: %w", err)
	}
	if _, err := readDNS(cfg.resolvConf); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	full, err := fullSets(cfg, req.Network)
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "ipam.dataDir: the reservations cannot be read: %w", err)
	}
	for _, i := range full {
		err := cni.Errorf(cni.CodeUnavailable, "range set %d (%s): no address is left of %s",
			i, cfg.sets[i], sizeText(cfg.sets[i].size()))
		if cfg.failWhenFull {
			return err
		}
		req.Warn("%v", err)
	}
	return nil
}

// fullSets lists the sets that have no free address.
func fullSets(cfg *config, network string) ([]int, error) {
	base, err := statefile.OpenExisting(cfg.dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dir, err := base.OpenExistingDir(network)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, base.Close()
	}
	if err != nil {
		return nil, errors.Join(err, base.Close())
	}
	l := &leases{store: &store{base: base, dir: dir}, network: network}
	full, err := l.full(cfg.sets)
	return full, errors.Join(err, l.close())
}

// full looks the sets up without the lock. What the index says counts if it
// describes the directory before and after; else the names in it count.
func (l *leases) full(sets []rangeSet) ([]int, error) {
	l.load()
	if l.index != nil {
		full, err := fullIn(l.index, sets)
		if again, _ := openIndex(l.inPlace, l.inPlace.Size()); err == nil && again != nil && l.current(again.header) {
			return full, nil
		}
	}
	l.index = nil
	names, err := l.dir.Names()
	if err != nil {
		return nil, err
	}
	var list []lease
	for _, name := range names {
		if addr, ok := leaseAddr(name); ok {
			list = append(list, lease{addr, name})
		}
	}
	x, err := indexOf(list)
	if err != nil {
		return nil, err
	}
	return fullIn(x, sets)
}

func fullIn(x *index, sets []rangeSet) ([]int, error) {
	var full []int
	for i, set := range sets {
		_, ok, err := x.freeIn(set.after(netip.Addr{}))
		if err != nil {
			return nil, err
		}
		if !ok {
			full = append(full, i)
		}
	}
	return full, nil
}
