package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
	"time"

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
// administrator wrote holds whatever he liked. Both are owners. A file that
// holds nothing has none.
type store struct {
	base *statefile.Dir // dataDir
	dir  *statefile.Dir
	held *statefile.Held
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

// openStore opens and locks the directory of a network, which it makes when
// create is set. Without create, one that is absent is an error that matches
// fs.ErrNotExist.
func openStore(ctx context.Context, dataDir, network string, create bool) (*store, error) {
	s := &store{}
	open, openDir := statefile.OpenExisting, (*statefile.Dir).OpenExistingDir
	if create {
		open = func(p string) (*statefile.Dir, error) { return statefile.Open(p, dirMode) }
		openDir = func(d *statefile.Dir, n string) (*statefile.Dir, error) { return d.OpenDir(n, dirMode) }
	}
	var err error
	s.base, err = open(dataDir)
	if !create && statefile.IsAbsent(err) {
		return nil, fmt.Errorf("ipam.dataDir: %s: %w", dataDir, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("ipam.dataDir: %w", err)
	}
	if s.dir, err = openDir(s.base, network); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.held, err = s.dir.Lock(ctx, lockFile, lockMode, lockWait); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// close gives the lock back.
func (s *store) close() error {
	var errs []error
	if s.held != nil {
		errs = append(errs, s.held.Unlock())
	}
	if s.dir != nil {
		errs = append(errs, s.dir.Close())
	}
	return errors.Join(append(errs, s.base.Close())...)
}

// ownerText is what a lease file of an interface of a container says.
func ownerText(containerID, ifName string) string { return containerID + "\r\n" + ifName }

// parseOwner reads an owner's text back. ok is false for everything that is
// not exactly what ownerText writes.
func parseOwner(text string) (containerID, ifName string, ok bool) {
	containerID, ifName, ok = strings.Cut(text, "\r\n")
	return containerID, ifName, ok && containerID != "" && ifName != "" && !strings.ContainsAny(ifName, "\r\n")
}

// irregular is the owner of an entry that no reservation can be made over. No
// container can have this name.
const irregular = "(not a regular file)"

// owner reads who holds an address. A lease file that is absent, or whose
// content is nobody's (a writer died before it wrote, or wrote nothing but
// blanks and NULs), has the owner "".
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

// errTaken says that an address has an owner already.
var errTaken = errors.New("is reserved already")

// reserve writes the owner's lease file. A file that nobody owns gives way:
// nobody can be about to write it, since we hold the lock.
func (s *store) reserve(addr netip.Addr, owner string) error {
	name := addr.String()
	err := s.dir.Create(name, []byte(owner), leaseMode)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	switch holder, err := s.owner(addr); {
	case err != nil:
		return err
	case holder != "":
		return errTaken
	}
	if err := s.dir.Remove(name); err != nil {
		return err
	}
	return s.dir.Create(name, []byte(owner), leaseMode)
}

// release removes the lease file of an address.
func (s *store) release(addr netip.Addr) error { return s.dir.Remove(addr.String()) }

// lease is one file of the directory that is named by an address.
type lease struct {
	addr  netip.Addr
	owner string // "" = nobody
}

// leases reads the whole directory. A file that cannot be read may be
// anybody's: without it nobody can be told what he holds.
func (s *store) leases() ([]lease, error) {
	names, err := s.dir.Names()
	if err != nil {
		return nil, err
	}
	list := make([]lease, 0, len(names))
	for _, name := range names {
		addr, ok := leaseAddr(name)
		if !ok {
			continue
		}
		owner, err := s.owner(addr)
		if err != nil {
			return nil, err
		}
		list = append(list, lease{addr, owner})
	}
	return list, nil
}

// leaseAddr is the address that a lease file's name says. Only the one
// spelling that plugins write counts.
func leaseAddr(name string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(name)
	if err != nil || addr.Zone() != "" || addr.Is4In6() || addr.String() != name {
		return netip.Addr{}, false
	}
	return addr, true
}

// last returns the address that the set gave away last. What is no address
// counts as none.
func (s *store) last(set int) (netip.Addr, error) {
	content, err := s.dir.Read(lastFile + strconv.Itoa(set))
	if errors.Is(err, fs.ErrNotExist) {
		return netip.Addr{}, nil
	}
	addr, _ := netip.ParseAddr(string(content))
	return addr, err
}

// setLast remembers the address that the set gave away last.
func (s *store) setLast(set int, addr netip.Addr) error {
	name, text := lastFile+strconv.Itoa(set), []byte(addr.String())
	// In place where nothing is left over of the old text: one small write
	// is not cut in two by a kill, and ext4 need not flush it as it does for
	// a rename.
	if f, err := s.dir.OpenFile(name); err == nil {
		defer f.Close()
		if f.Size() == int64(len(text)) {
			_, err := f.WriteAt(text, 0)
			return err
		}
	}
	return s.dir.Replace(name, text, leaseMode)
}
