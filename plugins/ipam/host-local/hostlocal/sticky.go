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

// Which address a pod had last is remembered in the file <dataDir>/.hawser/.sticky/<network>, a table of fixed size:
// the hash of pod, interface and set chooses a place, which has the hash and the address as an entry of the index has
// them. A pod whose place another one takes is forgotten, so nothing has to be cleared up. Whatever the table says, an
// address is given only where it is free and of the set.
const (
	stickyDir = ".sticky"
	places    = 1 << 14
)

// placeOf is the place of a pod's address of a set, and the owner that the entry there must have.
func placeOf(pod string, set int) (offset int64, owner string) {
	owner = fmt.Sprintf("%s\n%d", pod, set)
	return int64(ownerHash(owner)%places) * entrySize, owner
}

// openSticky opens the table. Where there is none the error matches fs.ErrNotExist or, for a mode, one is made.
func (s *leaseDir) openSticky(mode fs.FileMode) (*os.File, error) {
	dir, err := statefile.OpenOwn(filepath.Join(s.dataDir, indexDir, stickyDir), mode)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := dir.OpenFile(s.network)
	if errors.Is(err, fs.ErrNotExist) && mode != 0 {
		if err = dir.Replace(s.network, nil, leaseMode); err == nil {
			f, err = dir.OpenFile(s.network)
		}
	}
	return f, err
}

// remembered is the address of a set that the pod had last; none where nothing is known.
func (s *leaseDir) remembered(pod string, set int) (addr netip.Addr) {
	f, err := s.openSticky(0)
	if err != nil {
		return addr
	}
	defer f.Close()
	entry := make([]byte, entrySize)
	offset, owner := placeOf(pod, set)
	if _, err := f.ReadAt(entry, offset); err != nil || entryHash(entry) != ownerHash(owner) {
		return addr
	}
	return entryAddr(entry)
}

// remember writes down the addresses that the pod has now.
func (s *leaseDir) remember(pod string, ips []cni.IP) error {
	f, err := s.openSticky(0o700)
	if err != nil {
		return err
	}
	defer f.Close()
	for set, ip := range ips {
		offset, owner := placeOf(pod, set)
		if _, err := f.WriteAt(appendEntry(nil, ip.Address.Addr(), owner), offset); err != nil {
			return err
		}
	}
	return nil
}
