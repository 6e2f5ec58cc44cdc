package main

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
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/statefile"
)

// store is the lease directory of one network, <dataDir>/<network>, in the
// format that the reference plugin defined and other tools read:
//
//	lock                 empty; whoever changes anything here holds its flock
//	<address>            the owner: container ID CR LF interface name
//	last_reserved_ip.<N> the address that set N gave away last
//
// A file that older plugins wrote holds the container ID alone; one that an
// administrator wrote holds any text. Both are owners. A file without text has
// no owner.
//
// The directory is the truth. The index (index.go) saves reading all of it.
type store struct {
	dataDir string
	network string
	dir     *statefile.Dir
	lock    *statefile.Held
	index   *index  // nil until it is needed, and where there is none
	listed  []lease // all leases instead, when this call had to read the directory
	changed bool    // this call changed the directory
}

const (
	lockFile  = "lock"
	lastFile  = "last_reserved_ip."
	dirMode   = 0o755
	lockMode  = 0o750
	leaseMode = 0o600

	// lockWait is how long a call waits for its turn. A network plugin gives
	// us 90 s and a kubelet two minutes: the answer must come before that.
	lockWait = 30 * time.Second
)

// openStore opens and locks the directory of a network. ADD creates it; for the
// others, where there is none the store is nil.
func openStore(ctx context.Context, dataDir, network string, create bool) (*store, error) {
	s, err := openUnlocked(dataDir, network, create)
	if s == nil || err != nil {
		return nil, err
	}
	if s.lock, err = s.dir.Lock(ctx, lockFile, lockMode, lockWait); err != nil {
		return nil, errors.Join(fmt.Errorf("network %q: %w", network, err), s.close())
	}
	return s, nil
}

func openUnlocked(dataDir, network string, create bool) (*store, error) {
	perm := fs.FileMode(0)
	if create {
		perm = dirMode
	}
	path := filepath.Join(dataDir, network)
	dir, err := statefile.OpenOwn(path, perm)
	if err == nil {
		return &store{dataDir: dataDir, network: network, dir: dir}, nil
	}
	absent := err
	if errors.Is(err, unix.ENOTDIR) { // what is before it is no directory, or itself a file or a link
		_, absent = os.Lstat(path)
	}
	if !create && (statefile.IsAbsent(absent) || errors.Is(absent, unix.ENAMETOOLONG)) {
		return nil, nil
	}
	return nil, fmt.Errorf("ipam.dataDir: %w", err)
}

// close makes the index describe the directory as it is now, and gives the lock
// back. An index that cannot be written is no error: the next call reads the
// directory.
func (s *store) close() error {
	switch {
	case s.lock == nil:
	case s.listed != nil:
		_ = s.newIndex()
	case s.index != nil && s.changed:
		_ = s.stampIndex()
	}
	var errs []error
	if s.lock != nil {
		errs = append(errs, s.lock.Unlock())
	}
	s.dropIndex()
	return errors.Join(append(errs, s.dir.Close())...)
}

func (s *store) dropIndex() {
	if s.index != nil {
		s.index.file.Close()
		s.index = nil
	}
}

// ownerText is what a lease file of an interface of a container says.
func ownerText(containerID, ifName string) string { return containerID + "\r\n" + ifName }

// parseOwner reads an owner's text back. ok is false for everything that is
// not exactly what ownerText writes.
func parseOwner(text string) (containerID, ifName string, ok bool) {
	containerID, ifName, ok = strings.Cut(text, "\r\n")
	return containerID, ifName, ok && containerID != "" && ifName != "" && !strings.ContainsAny(ifName, "\r\n")
}

// irregular is the owner of an entry that is no file. No container can have
// this name.
const irregular = "(not a regular file)"

// owner reads who holds an address; "" is nobody. A file is nobody's when it
// holds only blanks and NULs: its writer was killed.
func (s *store) owner(addr netip.Addr) (string, error) {
	content, err := s.dir.Read(addr.String())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case errors.Is(err, statefile.ErrIrregular):
		return irregular, nil
	}
	return ownerOf(content), err
}

func ownerOf(content []byte) string {
	if len(bytes.Trim(content, "\x00 \t\r\n\v\f")) == 0 {
		return ""
	}
	return string(bytes.TrimSpace(content))
}

// heldBy returns the addresses of the first owner that has any.
func (s *store) heldBy(owners ...string) ([]netip.Addr, error) {
	if s.listed == nil {
		if addrs, err := s.heldByIndex(owners); err == nil {
			return addrs, nil
		}
		if err := s.walk(); err != nil {
			return nil, err
		}
	}
	for _, owner := range owners {
		var addrs []netip.Addr
		for _, l := range s.listed {
			if l.owner == owner {
				addrs = append(addrs, l.addr)
			}
		}
		if len(addrs) > 0 {
			return addrs, nil
		}
	}
	return nil, nil
}

// heldByIndex is heldBy on the index's word. A file rewritten in place does not
// show in the directory's time, so each lease that is found is verified by
// reading that one file.
func (s *store) heldByIndex(owners []string) ([]netip.Addr, error) {
	if err := s.loadIndex(); err != nil {
		return nil, err
	}
	found, err := s.index.find(owners...)
	if err != nil {
		return nil, err
	}
	for i, owner := range owners {
		for _, addr := range found[i] {
			if holder, err := s.owner(addr); err != nil || holder != owner {
				return nil, errStale
			}
		}
		if len(found[i]) > 0 {
			return found[i], nil
		}
	}
	return nil, nil
}

// taken returns the addresses that have an owner, as far as that is known without reading the directory.
func (s *store) taken() (map[netip.Addr]bool, error) {
	if s.listed == nil && s.loadIndex() == nil {
		return s.index.taken()
	}
	taken := map[netip.Addr]bool{}
	for _, l := range s.listed {
		taken[l.addr] = l.owner != ""
	}
	return taken, nil
}

// errTaken says that an address has an owner already.
var errTaken = errors.New("is reserved already")

// reserve writes the owner's lease file, whole or not at all. A file that
// nobody owns is replaced: nobody can be about to write it, since we hold the
// lock. The error matches errTaken when the address has an owner.
func (s *store) reserve(addr netip.Addr, owner string) error {
	name := addr.String()
	err := s.dir.Create(name, []byte(owner), leaseMode)
	if errors.Is(err, fs.ErrExist) {
		switch holder, err := s.owner(addr); {
		case err != nil:
			return err
		case holder != "":
			return errTaken
		}
		s.changed = true
		if err := s.dir.Remove(name); err != nil {
			return err
		}
		err = s.dir.Create(name, []byte(owner), leaseMode)
	}
	if err != nil {
		return err
	}
	s.changed = true
	l := lease{addr, owner}
	if s.listed != nil {
		s.listed = append(s.listed, l)
	} else if s.index != nil && s.index.add(l) != nil {
		s.dropIndex()
	}
	return nil
}

// release removes the lease of an address that heldBy found or reserve took.
func (s *store) release(addr netip.Addr) error {
	s.changed = true
	if err := s.dir.Remove(addr.String()); err != nil {
		return err
	}
	if s.listed != nil {
		s.listed = slices.DeleteFunc(s.listed, func(l lease) bool { return l.addr == addr })
	} else if s.index != nil && s.index.remove(addr) != nil {
		s.dropIndex()
	}
	return nil
}

// lease is one file of the directory that is named by an address.
type lease struct {
	addr  netip.Addr
	owner string // "" = nobody
}

// walk reads the whole directory; close makes a new index of it. A file that
// cannot be read is an error: anybody may own it.
func (s *store) walk() error {
	if err := s.dir.Sweep(); err != nil {
		return err
	}
	addrs, err := s.addrs()
	if err != nil {
		return err
	}
	list := make([]lease, 0, len(addrs))
	for _, addr := range addrs {
		owner, err := s.owner(addr)
		if err != nil {
			return err
		}
		list = append(list, lease{addr, owner})
	}
	s.listed = list
	s.dropIndex()
	return nil
}

// addrs lists the addresses that the directory has entries for. Only the one
// spelling that plugins write counts.
func (s *store) addrs() ([]netip.Addr, error) {
	names, err := s.dir.Names()
	if err != nil {
		return nil, err
	}
	addrs := make([]netip.Addr, 0, len(names))
	for _, name := range names {
		addr, err := netip.ParseAddr(name)
		if err == nil && addr.Zone() == "" && !addr.Is4In6() && addr.String() == name {
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// last returns the address that the set gave away last. Where to begin is no
// reason to fail: what cannot be read, or is no address, counts as none.
func (s *store) last(set int) netip.Addr {
	content, _ := s.dir.Read(lastFile + strconv.Itoa(set))
	addr, _ := netip.ParseAddr(string(content))
	return addr
}

// setLast remembers the address that the set gave away last.
func (s *store) setLast(set int, addr netip.Addr) error {
	name, text := lastFile+strconv.Itoa(set), []byte(addr.String())
	// In place where the old text is as long: one small write is not cut in two
	// by a kill, and ext4 need not flush it as it does for a rename.
	if f, err := s.dir.OpenFile(name); err == nil {
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.Size() == int64(len(text)) {
			_, err := f.WriteAt(text, 0)
			return err
		}
	}
	s.changed = true
	return s.dir.Replace(name, text, leaseMode)
}
