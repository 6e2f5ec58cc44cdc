package hostlocal

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// The file <dataDir>/.hawser/.sticky/<network> contains the last address of each pod. It is a table of fixed size: the
// hash of pod, interface and range set selects a slot, which contains the hash and the address, like an entry of the
// index. If two pods have the same slot, the later one replaces the earlier one, so the table needs no clean-up. The
// table is only a hint: ADD assigns an address from it only if the address is free and in the set.
const (
	stickyDir = ".sticky"
	slots     = 1 << 14
)

// slotOf returns the offset of the slot for a pod's interface and a set, and the owner that its entry must have.
func slotOf(podKey string, set int) (offset int64, owner string) {
	owner = fmt.Sprintf("%s\n%d", podKey, set)
	return int64(ownerHash(owner)%slots) * entrySize, owner
}

// openSticky opens the table. It creates a missing one with mode or, if mode is 0, returns an error.
func (s *leaseDir) openSticky(mode fs.FileMode) (*os.File, error) {
	dir, err := statefile.OpenNoFollow(filepath.Join(s.dataDir, indexDir, stickyDir), mode)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := openInPlace(dir, s.network)
	if errors.Is(err, fs.ErrNotExist) && mode != 0 {
		if err = dir.Replace(s.network, nil, leaseMode); err == nil {
			f, err = openInPlace(dir, s.network)
		}
	}
	return f, err
}

// stickyAddress returns the last address of the pod in a set, or the zero Addr if it is unknown.
func (s *leaseDir) stickyAddress(podKey string, set int) (addr netip.Addr) {
	f, err := s.openSticky(0)
	if err != nil {
		return addr
	}
	defer f.Close()
	entry := make([]byte, entrySize)
	offset, owner := slotOf(podKey, set)
	if _, err := f.ReadAt(entry, offset); err != nil || entryHash(entry) != ownerHash(owner) {
		return addr
	}
	return entryAddr(entry)
}

func (s *leaseDir) setSticky(podKey string, ips []cni.IP) error {
	f, err := s.openSticky(0o700)
	if err != nil {
		return err
	}
	defer f.Close()
	for set, ip := range ips {
		offset, owner := slotOf(podKey, set)
		if _, err := f.WriteAt(appendEntry(nil, ip.Address.Addr(), owner), offset); err != nil {
			return err
		}
	}
	return nil
}
