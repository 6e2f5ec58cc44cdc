package hostlocal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// index lists the owners and addresses of all leases, so that DEL and CHECK need not read every lease file. It is the
// file <dataDir>/.hawser/<network>:
//
//	header   identity, stamp, number of entries
//	entries  hash of the owner's text, address; in no order
//
// A search reads all entries. A new entry is appended. When an entry is removed, the last one takes its place.
//
// The reference plugin changes the lease directory without updating the index. The stamp shows whether that happened.
// Each call that changes the directory ends, under the lock, by writing a new stamp into the index and setting the
// modification time of the directory to the time that represents this stamp: a whole second between 1980 and 1997. The
// index is current as long as the two match. For example:
//
//	ADD creates a lease, writes stamp 7 and sets the time 1980-01-01 00:00:07
//	DEL reads stamp 7 and that time: the index is current
//	the reference plugin creates a lease; the kernel sets the directory's time to now
//	DEL reads stamp 7 and a time in the present: it reads the directory and writes a new index
//
// The kernel sets the time whenever a file is created, deleted or renamed, and never to a time in that range. Comparing
// the kernel's own times is not sufficient, because two changes can get the same time. If a call is killed before it
// sets the time, the next call reads the directory.
//
// The stamp does not show two kinds of changes: changes without the lock between reading the directory and setting the
// time, and files that are rewritten in place. These changes are harmless, because each lease that the index finds is
// verified by reading its file, and ADD finds an existing file when it creates the lease.
type index struct {
	file      *os.File // nil: this call has read the directory, and leaseDir.close will write the entries
	memory    []byte   // the entries if file is nil
	identity  []byte   // beginning of the header
	stamp     uint64
	count     int
	positions map[netip.Addr]int // numbers of the entries that addressesOf found or add appended
}

const (
	indexDir   = ".hawser"
	indexMagic = "hawser-index-1\n"
	hashSize   = 8
	entrySize  = hashSize + 16

	// scanBatch is the number of entries read at a time. Allocating a larger buffer would cost more than it saves.
	scanBatch = 8 << 10
)

// openIndex opens an index. It returns errStale if the directory has another identity or modification time.
func openIndex(file *os.File, identity []byte, modTime time.Time) (*index, error) {
	x := &index{file: file, identity: identity, positions: map[netip.Addr]int{}}
	data := make([]byte, len(identity)+16)
	if _, err := file.ReadAt(data, 0); err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	rest, isSame := bytes.CutPrefix(data, identity)
	if !isSame {
		return nil, errStale
	}
	x.stamp = binary.LittleEndian.Uint64(rest)
	count := binary.LittleEndian.Uint64(rest[8:])
	x.count = int(min(count, uint64(info.Size())))
	if x.offset(x.count) > info.Size() || !modTime.Equal(stampTime(x.stamp)) {
		return nil, errStale
	}
	return x, nil
}

// offset returns where an entry begins in the file.
func (x *index) offset(i int) int64 { return int64(len(x.identity) + 16 + i*entrySize) }

func (x *index) read(entries []byte, i int) error {
	if x.file == nil {
		copy(entries, x.memory[i*entrySize:])
		return nil
	}
	_, err := x.file.ReadAt(entries, x.offset(i))
	return err
}

// write replaces entry number i, or appends it if i is the number of entries.
func (x *index) write(entry []byte, i int) error {
	if x.file == nil {
		offset := i * entrySize
		x.memory = slices.Replace(x.memory, offset, min(offset+entrySize, len(x.memory)), entry...)
		return nil
	}
	_, err := x.file.WriteAt(entry, x.offset(i))
	return err
}

// scan calls visit with all entries, many at a time. first is the number of the first entry of each call.
func (x *index) scan(visit func(first int, entries []byte)) error {
	buf := make([]byte, min(x.count, scanBatch)*entrySize)
	for i := 0; i < x.count; i += scanBatch {
		part := buf[:min(x.count-i, scanBatch)*entrySize]
		if err := x.read(part, i); err != nil {
			return err
		}
		visit(i, part)
	}
	return nil
}

// addressesOf returns the addresses of each owner. They can include addresses of other owners with the same hash.
func (x *index) addressesOf(owners ...string) ([][]netip.Addr, error) {
	hashes := make([]uint64, len(owners))
	for n, owner := range owners {
		hashes[n] = ownerHash(owner)
	}
	found := make([][]netip.Addr, len(owners))
	err := x.scan(func(first int, entries []byte) {
		for offset := 0; offset < len(entries); offset += entrySize {
			n := slices.Index(hashes, entryHash(entries[offset:]))
			if n >= 0 {
				addr := entryAddr(entries[offset:])
				found[n], x.positions[addr] = append(found[n], addr), first+offset/entrySize
			}
		}
	})
	return found, err
}

// addrSet is a set of addresses, with a bit for each address in blocks of 256. Filling a map with 65,000 addresses
// would take forty times as long.
type addrSet map[[15]byte]*[4]uint64

// bit returns the position of an address's bit: the block's key, the word in the block, and the mask in the word.
func bit(addr netip.Addr) (key [15]byte, word int, mask uint64) {
	a := addr.As16()
	return [15]byte(a[:15]), int(a[15] / 64), 1 << (a[15] % 64)
}

func (s addrSet) add(addr netip.Addr) {
	key, word, mask := bit(addr)
	if s[key] == nil {
		s[key] = new([4]uint64)
	}
	s[key][word] |= mask
}

func (s addrSet) contains(addr netip.Addr) bool {
	key, word, mask := bit(addr)
	block := s[key]
	return block != nil && block[word]&mask != 0
}

// addresses returns the set of all addresses in the index.
func (x *index) addresses() (addrSet, error) {
	taken := addrSet{}
	err := x.scan(func(_ int, entries []byte) {
		for entry := range slices.Chunk(entries, entrySize) {
			taken.add(entryAddr(entry))
		}
	})
	return taken, err
}

// usage returns the number of leases in a set and the number of their owners.
func (x *index) usage(set ranges.Set) (files, owners int) {
	seen := map[uint64]bool{}
	_ = x.scan(func(_ int, entries []byte) { // cannot fail in memory
		for entry := range slices.Chunk(entries, entrySize) {
			if _, ok := set.RangeOf(entryAddr(entry)); ok {
				files++
				seen[entryHash(entry)] = true
			}
		}
	})
	return files, len(seen)
}

func (x *index) add(addr netip.Addr, owner string) error {
	if err := x.write(appendEntry(nil, addr, owner), x.count); err != nil {
		return err
	}
	x.positions[addr] = x.count
	x.count++
	return nil
}

// remove removes an entry that addressesOf found or add appended.
func (x *index) remove(addr netip.Addr) error {
	i, isKnown := x.positions[addr]
	if !isKnown {
		return errStale
	}
	last := make([]byte, entrySize)
	if err := x.read(last, x.count-1); err != nil {
		return err
	}
	if err := x.write(last, i); err != nil {
		return err
	}
	if moved := entryAddr(last); x.positions[moved] == x.count-1 {
		x.positions[moved] = i
	}
	delete(x.positions, addr)
	x.count--
	return nil
}

func appendEntry(entries []byte, addr netip.Addr, owner string) []byte {
	a := addr.As16()
	return append(binary.BigEndian.AppendUint64(entries, ownerHash(owner)), a[:]...)
}

func entryHash(entry []byte) uint64 { return binary.BigEndian.Uint64(entry) }

func entryAddr(entry []byte) netip.Addr {
	return netip.AddrFrom16([16]byte(entry[hashSize:entrySize])).Unmap()
}

func ownerHash(owner string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(owner))
	return h.Sum64()
}

// errStale means that the index does not describe the current state of the directory.
var errStale = errors.New("stale index")

// loadIndex opens the index unless it is open. It returns an error if there is no current index.
func (s *leaseDir) loadIndex() error {
	if s.index != nil {
		return nil
	}
	dir, err := statefile.OpenNoFollow(filepath.Join(s.dataDir, indexDir), 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	file, err := openInPlace(dir, s.network)
	if err != nil {
		return err
	}
	identity, modTime, err := s.identity()
	if err == nil {
		s.index, err = openIndex(file, identity, modTime)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	return nil
}

// identity returns the text with which the header of this directory's index must begin, and the directory's
// modification time. The identity contains the boot ID, because after a power failure any part of a file can be old.
func (s *leaseDir) identity() (identity []byte, modTime time.Time, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(s.dir.FD(), &st); err != nil {
		return nil, modTime, err
	}
	boot, err := s.bootID()
	if err != nil {
		return nil, modTime, err
	}
	return fmt.Appendf(nil, "%s%s\n%016x %016x\n", indexMagic, boot, st.Dev, st.Ino), time.Unix(st.Mtim.Unix()), nil
}

// stampIndex writes a new stamp, and the index if it is only in memory. It then sets the directory's modification time
// to the time that represents the stamp.
func (s *leaseDir) stampIndex() error {
	x := s.index
	if x.stamp == 0 { // a new index begins at a random stamp, so that a restored old index does not match by chance
		x.stamp = rand.Uint64()
	}
	x.stamp = x.stamp%(stampCount-1) + 1
	if x.file != nil {
		if _, err := x.file.WriteAt(x.encodeHeader(), 0); err != nil {
			return err
		}
	} else if err := s.writeIndex(); err != nil {
		return err
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(stampTime(x.stamp).UnixNano())}
	return unix.UtimesNanoAt(s.dir.FD(), ".", times, 0)
}

// writeIndex writes the index from memory to a new file.
func (s *leaseDir) writeIndex() (err error) {
	if s.index.identity, _, err = s.identity(); err != nil {
		return err
	}
	dir, err := statefile.OpenNoFollow(filepath.Join(s.dataDir, indexDir), 0o700)
	if err != nil {
		return err
	}
	defer dir.Close()
	data := append(s.index.encodeHeader(), s.index.memory[:s.index.count*entrySize]...)
	return dir.Replace(s.network, data, leaseMode)
}

func (x *index) encodeHeader() []byte {
	b := binary.LittleEndian.AppendUint64(slices.Clone(x.identity), x.stamp)
	return binary.LittleEndian.AppendUint64(b, uint64(x.count))
}

const stampCount = 1 << 29 // number of stamps before they repeat

// stampTime returns the time that represents a stamp: a second between 1980 and 1997. Every file system can store it.
func stampTime(stamp uint64) time.Time { return time.Unix(315532800+int64(stamp%stampCount), 0) }
