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

// leaseDir is the directory of one network's leases, <dataDir>/<network>, in the
// format that the reference plugin defined and other tools read:
//
//	lock                 empty; whoever changes anything here holds its flock
//	<address>            the owner: container ID CR LF interface name
//	last_reserved_ip.<N> the address that set N gave away last
//
// Older plugins wrote the container ID alone, and an administrator writes any text.
// These are owners, too. A file without text has none.
type leaseDir struct {
	dataDir string
	network string
	dir     *statefile.Dir
	lock    *statefile.Lock
	boot    string // what bootID returns
	note    []byte // of the leases that this call writes
	index   *index // nil until it is needed, and where there is none
	changed bool   // this call changed the directory
}

const (
	lockFile  = "lock"
	lastFile  = "last_reserved_ip."
	dirMode   = 0o755
	lockMode  = 0o750
	leaseMode = 0o600
)

// openLeaseDir opens and locks a network's directory. Where there is none it makes it with perm; for 0 it returns nil.
func openLeaseDir(ctx context.Context, dataDir, network string, perm fs.FileMode) (*leaseDir, error) {
	s, err := openUnlocked(dataDir, network, perm)
	if s == nil || err != nil {
		return nil, err
	}
	if s.lock, err = s.dir.LockFile(ctx, lockFile, lockMode, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("network %q: %w", network, err), s.close())
	}
	return s, nil
}

func openUnlocked(dataDir, network string, perm fs.FileMode) (*leaseDir, error) {
	path := filepath.Join(dataDir, network)
	dir, err := statefile.OpenOwn(path, perm)
	if err == nil {
		return &leaseDir{dataDir: dataDir, network: network, dir: dir}, nil
	}
	absent := err
	if errors.Is(err, unix.ENOTDIR) { // what is before it is no directory, or itself a file or a link
		_, absent = os.Lstat(path)
	}
	if perm == 0 && (statefile.IsAbsent(absent) || errors.Is(absent, unix.ENAMETOOLONG)) {
		return nil, nil
	}
	return nil, fmt.Errorf("ipam.dataDir: %w", err)
}

// close makes the index describe the directory as it is now, and unlocks it. An index that
// cannot be written is no error: the next call reads the directory.
func (s *leaseDir) close() error {
	var err error
	if s.lock != nil {
		if s.index != nil && (s.changed || s.walked()) {
			_ = s.stampIndex()
		}
		err = s.lock.Unlock()
	}
	s.dropIndex()
	return errors.Join(err, s.dir.Close())
}

// walked says whether this call has read the directory.
func (s *leaseDir) walked() bool { return s.index != nil && s.index.file == nil }

func (s *leaseDir) dropIndex() {
	if s.index != nil {
		_ = s.index.file.Close() // nil is no file, too
		s.index = nil
	}
}

func (s *leaseDir) bootID() (id string, err error) {
	if s.boot == "" {
		s.boot, err = sysctl.BootID()
	}
	return s.boot, err
}

// ownerText is what a lease file of an interface of a container says.
func ownerText(containerID, ifName string) string { return containerID + "\r\n" + ifName }

// parseOwner reads an owner's text back; ok says whether ownerText has written it.
func parseOwner(text string) (containerID, ifName string, ok bool) {
	containerID, ifName, ok = strings.Cut(text, "\r\n")
	return containerID, ifName, ok && containerID != "" && ifName != "" && !strings.ContainsAny(ifName, "\r\n")
}

// irregular is the owner of an entry that is no file. No container can have this name.
const irregular = "(not a regular file)"

// owner reads who owns an address; "" is nobody, as of a file of blanks and NULs, whose writer was killed.
func (s *leaseDir) owner(addr netip.Addr) (string, error) {
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

// heldBy returns the addresses of the first owner that has any, by the index or, where that is wrong, the directory.
func (s *leaseDir) heldBy(owners ...string) ([]netip.Addr, error) {
	if s.loadIndex() == nil {
		if addrs, err := s.find(owners); err == nil {
			return addrs, nil
		}
	}
	if err := s.walk(nil); err != nil {
		return nil, err
	}
	return s.find(owners)
}

// find is heldBy on the index's word. A file rewritten in place does not show in the
// directory's time, so each lease that is found is verified by reading that one file.
func (s *leaseDir) find(owners []string) (addrs []netip.Addr, err error) {
	found, err := s.index.find(owners...)
	if err != nil {
		return nil, err
	}
	for i, owner := range owners {
		for _, addr := range found[i] {
			has, err := s.owner(addr)
			switch {
			case err != nil:
				return nil, err
			case has == owner:
				addrs = append(addrs, addr)
			case !s.walked():
				return nil, errStale
			}
		}
		if addrs != nil {
			break
		}
	}
	return addrs, nil
}

// errTaken says that an address has an owner.
var errTaken = errors.New("is reserved already")

func (s *leaseDir) verifyFree(addr netip.Addr) error {
	owner, err := s.owner(addr)
	if err == nil && owner != "" {
		err = errTaken
	}
	return err
}

// reserve writes the owner's lease file, whole or not at all. When the address has an owner
// the error matches errTaken. A file of nobody is replaced: its writer would hold the lock.
func (s *leaseDir) reserve(addr netip.Addr, owner string) error {
	name := addr.String()
	create := func() error { return s.dir.Create(name, []byte(owner), s.note, leaseMode) }
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

// release removes the lease of an address that heldBy or a judge found, or reserve took.
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

// walk reads the whole directory into a new index, and removes the leases whose owner is stale.
// A file that cannot be read is an error: anybody may own it.
func (s *leaseDir) walk(isStale func(owner string) bool) error {
	if err := s.dir.Sweep(); err != nil {
		return err
	}
	names, err := s.dir.Names()
	if err != nil {
		return err
	}
	x := &index{memory: make([]byte, 0, len(names)*entrySize), at: map[netip.Addr]int{}}
	var errs []error
	for _, name := range names {
		addr, ok := leased(name)
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
		if owner != "" { // a file of nobody is as good as none
			x.memory = appendEntry(x.memory, addr, owner)
			x.count++
		}
	}
	s.dropIndex()
	s.index = x
	return errors.Join(errs...)
}

// leased is the address of a lease file. Only the spelling that plugins write counts.
func leased(name string) (addr netip.Addr, ok bool) {
	addr, err := netip.ParseAddr(name)
	return addr, err == nil && addr.Zone() == "" && !addr.Is4In6() && addr.String() == name
}

// list lists the leases of containers, without the lock, and files of nobody, which the reference neither lends nor
// removes. What an administrator wrote is none of them.
func (s *leaseDir) list() (all []cni.Holding, err error) {
	names, err := s.dir.Names()
	errs := []error{err}
	boot, _ := s.bootWord()
	judge := sync.OnceValues(s.newJudge) // rarely needed, because most leases have a note
	isEarlier := func(addr netip.Addr) bool {
		j, err := judge()
		if err != nil {
			return false
		}
		_, isDead := j.look(addr)
		return isDead
	}
	for _, name := range slices.Sorted(slices.Values(names)) {
		addr, ok := leased(name)
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
		if n, ok := parseNote(s.dir.Note(name)); ok && n.boot == boot {
			h.Processes = n.processes
			if n.owner == ownerWord(text) {
				h.NetnsInode, h.NetnsCookie = n.netns.Inode, n.netns.Cookie
			}
		} else {
			h.IsOfEarlierBoot = isEarlier(addr)
		}
		all = append(all, h)
	}
	return all, errors.Join(errs...)
}

// last is the address that the set gave away last; none where it cannot be read: where to begin is no reason to fail.
func (s *leaseDir) last(set int) netip.Addr {
	content, _ := s.dir.Read(lastFile + strconv.Itoa(set))
	addr, _ := netip.ParseAddr(string(content))
	return addr
}

// setLast remembers the address that the set gave away last.
func (s *leaseDir) setLast(set int, addr netip.Addr) error {
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
