package hostlocal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// leaseDir is the directory of one network's leases, <dataDir>/<network>. The reference plugin defined its format,
// and other tools read it:
//
//	lock                 empty; its flock is held for every change in the directory
//	<address>            the owner: container ID CR LF interface name
//	last_reserved_ip.<N> the address that was assigned last from set N
//
// Older plugins wrote only the container ID, and an administrator can write any text. These are also owners. A file
// without text has no owner.
type leaseDir struct {
	dataDir string
	network string
	dir     *statefile.Dir
	lock    *statefile.Lock
	boot    string // cache of bootID
	note    []byte // note of the leases that this call writes
	index   *index // nil if not yet needed or not available
	changed bool   // this call has changed the directory
}

const (
	lockFile  = "lock"
	lastFile  = "last_reserved_ip."
	dirMode   = 0o755
	lockMode  = 0o750
	leaseMode = 0o600
)

// openLeaseDir opens and locks a network's directory. It creates a missing one with perm or, if perm is 0, returns nil.
func openLeaseDir(ctx context.Context, dataDir, network string, perm fs.FileMode) (*leaseDir, error) {
	s, err := openUnlocked(dataDir, network, perm)
	if s == nil || err != nil {
		return nil, err
	}
	if s.lock, err = s.dir.LockFile(ctx, lockFile, lockMode, statefile.DefaultWait); err != nil {
		return nil, errors.Join(fmt.Errorf("network %q: %w", network, err), s.close())
	}
	return s, nil
}

// openUnlocked opens the directory as openLeaseDir does, but without the lock.
func openUnlocked(dataDir, network string, perm fs.FileMode) (*leaseDir, error) {
	path := filepath.Join(dataDir, network)
	dir, err := statefile.OpenNoFollow(path, perm)
	if err == nil {
		return &leaseDir{dataDir: dataDir, network: network, dir: dir}, nil
	}
	pathErr := err
	if errors.Is(err, unix.ENOTDIR) { // path, or one of its parents, is not a directory
		_, pathErr = os.Lstat(path)
	}
	if perm == 0 && (statefile.IsAbsent(pathErr) || errors.Is(pathErr, unix.ENAMETOOLONG)) {
		return nil, nil
	}
	return nil, fmt.Errorf("ipam.dataDir: %w", err)
}

// close updates the index and unlocks the directory. If the index cannot be written, the next call reads the
// directory, so this is not an error.
func (s *leaseDir) close() error {
	var err error
	if s.lock != nil {
		if s.index != nil && (s.changed || s.hasWalked()) {
			_ = s.stampIndex()
		}
		err = s.lock.Unlock()
	}
	s.dropIndex()
	return errors.Join(err, s.dir.Close())
}

// hasWalked reports whether this call has read the whole directory.
func (s *leaseDir) hasWalked() bool { return s.index != nil && s.index.file == nil }

func (s *leaseDir) dropIndex() {
	if s.index != nil {
		_ = s.index.file.Close() // returns an error if the index is only in memory
		s.index = nil
	}
}

func (s *leaseDir) bootID() (id string, err error) {
	if s.boot == "" {
		s.boot, err = sysctl.BootID()
	}
	return s.boot, err
}

// ownerText returns the text of a lease file for a container's interface.
func ownerText(containerID, ifName string) string { return containerID + "\r\n" + ifName }

// parseOwner parses the text of a lease file. ok is false if ownerText cannot have written it.
func parseOwner(text string) (containerID, ifName string, ok bool) {
	containerID, ifName, ok = strings.Cut(text, "\r\n")
	return containerID, ifName, ok && containerID != "" && ifName != "" && !strings.ContainsAny(ifName, "\r\n")
}

// irregularOwner is the owner of an entry that is not a regular file. No container can have this ID.
const irregularOwner = "(not a regular file)"

// owner returns the owner of an address, or "". A file of blanks or NULs has none, because its writer was killed.
func (s *leaseDir) owner(addr netip.Addr) (string, error) {
	content, err := s.dir.Read(addr.String())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case errors.Is(err, statefile.ErrIrregular):
		return irregularOwner, nil
	}
	return ownerOf(content), err
}

// ownerOf returns the owner in the content of a lease file.
func ownerOf(content []byte) string {
	if len(bytes.Trim(content, "\x00 \t\r\n\v\f")) == 0 {
		return ""
	}
	return string(bytes.TrimSpace(content))
}

// findLeases returns the addresses of the first of the owners that has any, from a current index or the directory.
func (s *leaseDir) findLeases(owners ...string) ([]netip.Addr, error) {
	if s.loadIndex() == nil {
		if addrs, err := s.findIndexed(owners); err == nil {
			return addrs, nil
		}
	}
	if err := s.walk(nil); err != nil {
		return nil, err
	}
	return s.findIndexed(owners)
}

// findIndexed returns what findLeases returns, from the index. It verifies each lease by reading its file, because a
// file that is rewritten in place does not change the directory's time. It returns errStale if the index is wrong.
func (s *leaseDir) findIndexed(owners []string) (addrs []netip.Addr, err error) {
	found, err := s.index.addressesOf(owners...)
	if err != nil {
		return nil, err
	}
	for i, owner := range owners {
		for _, addr := range found[i] {
			current, err := s.owner(addr)
			switch {
			case err != nil:
				return nil, err
			case current == owner:
				addrs = append(addrs, addr)
			case !s.hasWalked():
				return nil, errStale
			}
		}
		if addrs != nil {
			break
		}
	}
	return addrs, nil
}

var errTaken = errors.New("is reserved already") // error for an address that has an owner

// verifyFree returns errTaken if the address has an owner.
func (s *leaseDir) verifyFree(addr netip.Addr) error {
	owner, err := s.owner(addr)
	if err == nil && owner != "" {
		err = errTaken
	}
	return err
}

// reserve creates the lease file of an address, completely or not at all. If the address has an owner, the error
// matches errTaken. A file without an owner is replaced, because its writer no longer holds the lock.
func (s *leaseDir) reserve(addr netip.Addr, owner string) error {
	name := addr.String()
	create := func() error { return createFile(s.dir, name, []byte(owner), s.note) }
	err := create()
	if errors.Is(err, fs.ErrExist) {
		if err = s.verifyFree(addr); err == nil {
			if err = s.dir.Remove(name); err == nil {
				err = create()
			}
		}
	}
	if err != nil {
		return err
	}
	s.changed = true
	if s.index != nil && s.index.add(addr, owner) != nil {
		s.dropIndex()
	}
	return nil
}

// release removes the lease of an address. In this call, findLeases or a reclaimer must have returned the address, or
// reserve must have reserved it.
func (s *leaseDir) release(addr netip.Addr) error {
	s.changed = true
	if err := s.dir.Remove(addr.String()); err != nil {
		return err
	}
	if s.index != nil && s.index.remove(addr) != nil {
		s.dropIndex()
	}
	return nil
}

// walk reads the whole directory into a new index and removes the leases for whose owner isStale returns true. A file
// that cannot be read is an error, because it may have an owner.
func (s *leaseDir) walk(isStale func(owner string) bool) error {
	if err := s.dir.Sweep(); err != nil {
		return err
	}
	names, err := s.dir.Names()
	if err != nil {
		return err
	}
	x := &index{memory: make([]byte, 0, len(names)*entrySize), positions: map[netip.Addr]int{}}
	var errs []error
	for _, name := range names {
		addr, ok := parseLeaseName(name)
		if !ok {
			continue
		}
		owner, err := s.owner(addr)
		if err != nil {
			return err
		}
		if isStale != nil && isStale(owner) {
			err := s.dir.Remove(name)
			if err == nil {
				continue
			}
			errs = append(errs, err)
		}
		if owner != "" { // an address without an owner is free
			x.memory = appendEntry(x.memory, addr, owner)
			x.count++
		}
	}
	s.dropIndex()
	s.index = x
	return errors.Join(errs...)
}

// parseLeaseName returns the address in the name of a lease file. Only the spelling that plugins write is accepted.
func parseLeaseName(name string) (addr netip.Addr, ok bool) {
	addr, err := netip.ParseAddr(name)
	return addr, err == nil && addr.Zone() == "" && !addr.Is4In6() && addr.String() == name
}

// list returns the leases of containers, without the lock. It includes files without an owner, whose addresses the
// reference plugin neither assigns nor releases, and omits files that an administrator wrote.
func (s *leaseDir) list() (all []cni.Holding, err error) {
	names, err := s.dir.Names()
	errs := []error{err}
	boot, _ := s.bootPrefix()
	newReclaimer := sync.OnceValues(s.newReclaimer) // rarely needed, because most leases have a note
	for _, name := range slices.Sorted(slices.Values(names)) {
		addr, ok := parseLeaseName(name)
		if !ok {
			continue
		}
		text, err := s.owner(addr)
		id, ifName, ok := parseOwner(text)
		if !ok {
			id = text
		}
		if errs = append(errs, err); !cni.ValidName(id) && (text != "" || err != nil) {
			continue
		}
		h := cni.Holding{Attachment: cni.Attachment{Network: s.network, ContainerID: id, IfName: ifName},
			Kind: cni.HeldAddress, Value: name, Kept: filepath.Join(s.dir.Path(), name)}
		if info, err := os.Lstat(h.Kept); err == nil {
			h.Since = info.ModTime()
		}
		if n, ok := parseNote(readNote(s.dir, name)); ok && n.boot == boot {
			h.Processes = n.processes
			if n.owner == ownerHash32(text) {
				h.NetnsInode, h.NetnsCookie = n.netns.Inode, n.netns.Cookie
			}
		} else if r, err := newReclaimer(); err == nil {
			_, h.IsOfEarlierBoot = r.examine(addr)
		}
		all = append(all, h)
	}
	return all, errors.Join(errs...)
}

// lastAddress returns the address that was assigned last from a set. It returns the zero Addr if that cannot be read,
// because the search for a free address can begin anywhere.
func (s *leaseDir) lastAddress(set int) netip.Addr {
	content, _ := s.dir.Read(lastFile + strconv.Itoa(set))
	addr, _ := netip.ParseAddr(string(content))
	return addr
}

func (s *leaseDir) setLastAddress(set int, addr netip.Addr) error {
	name, text := lastFile+strconv.Itoa(set), []byte(addr.String())
	// A text of the same length is written in place: a kill does not interrupt such a small write, and ext4 need not
	// flush it as it does for a rename.
	if f, err := openInPlace(s.dir, name); err == nil {
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.Size() == int64(len(text)) {
			_, err := f.WriteAt(text, 0)
			return err
		}
	}
	s.changed = true
	return s.dir.Replace(name, text, leaseMode)
}
