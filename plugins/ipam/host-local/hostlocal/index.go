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

	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// index is a copy of what the lease directory says, in the file <dataDir>/.hawser/<network>:
//
//	header   identity, stamp, number of entries
//	entries  hash of the owner's text, address; in no order
//
// A search reads all entries. A new one is appended; the last one takes the place of one that
// is removed.
//
// The stamp says whether the index is current. Each change of ours ends, under the lock, by
// setting the directory's modification time to a whole second of a past year, which stands for
// the stamp. The kernel overwrites that time when a file is created, deleted or renamed. Its own
// times would not do: two changes may get the same one. After a kill before the stamp the next
// call reads the directory.
//
// Nobody notices a change that somebody makes without the lock, between our reading of the
// directory and the stamp. A file that was created then is found when ADD wants to create it,
// a deleted one when its lease is verified.
type index struct {
	file   *os.File // nil: this call has read the directory, and close writes the entries
	memory []byte   // the entries, where there is no file
	header []byte   // identity
	stamp  uint64
	count  int
	at     map[netip.Addr]int // the entries that find and add saw
}

const (
	indexDir   = ".hawser"
	indexMagic = "hawser-index-1\n"
	hashSize   = 8
	entrySize  = hashSize + 16

	// scanned is how many entries are read at once: fresh memory costs more than the reading.
	scanned = 8 << 10
)

// openIndex opens the index of a directory with this identity and this time.
func openIndex(file *os.File, identity []byte, modTime time.Time) (*index, error) {
	x := &index{file: file, header: identity, at: map[netip.Addr]int{}}
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

func (x *index) offset(i int) int64 { return int64(len(x.header) + 16 + i*entrySize) }

// read reads entries from number i on.
func (x *index) read(entries []byte, i int) error {
	if x.file == nil {
		copy(entries, x.memory[i*entrySize:])
		return nil
	}
	_, err := x.file.ReadAt(entries, x.offset(i))
	return err
}

// write writes entry number i, which is there or the next one.
func (x *index) write(entry []byte, i int) error {
	if x.file == nil {
		at := i * entrySize
		x.memory = slices.Replace(x.memory, at, min(at+entrySize, len(x.memory)), entry...)
		return nil
	}
	_, err := x.file.WriteAt(entry, x.offset(i))
	return err
}

// scan shows all entries, many at once; first is the number of the first of them.
func (x *index) scan(visit func(first int, entries []byte)) error {
	buf := make([]byte, min(x.count, scanned)*entrySize)
	for i := 0; i < x.count; i += scanned {
		part := buf[:min(x.count-i, scanned)*entrySize]
		if err := x.read(part, i); err != nil {
			return err
		}
		visit(i, part)
	}
	return nil
}

// find returns for each owner its addresses, and those of owners with the same
// hash.
func (x *index) find(owners ...string) ([][]netip.Addr, error) {
	hashes := make([]uint64, len(owners))
	for n, owner := range owners {
		hashes[n] = ownerHash(owner)
	}
	found := make([][]netip.Addr, len(owners))
	err := x.scan(func(first int, entries []byte) {
		for at := 0; at < len(entries); at += entrySize {
			n := slices.Index(hashes, entryHash(entries[at:]))
			if n >= 0 {
				addr := entryAddr(entries[at:])
				found[n], x.at[addr] = append(found[n], addr), first+at/entrySize
			}
		}
	})
	return found, err
}

// addrSet has a bit for each address, in blocks of 256: a map of 65,000 addresses takes forty times the time.
type addrSet map[[15]byte]*[4]uint64

// bit is where an address has its bit: the block's key, the word and its mask.
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

func (s addrSet) has(addr netip.Addr) bool {
	key, word, mask := bit(addr)
	block := s[key]
	return block != nil && block[word]&mask != 0
}

// taken is the set of all addresses.
func (x *index) taken() (addrSet, error) {
	taken := addrSet{}
	err := x.scan(func(_ int, entries []byte) {
		for entry := range slices.Chunk(entries, entrySize) {
			taken.add(entryAddr(entry))
		}
	})
	return taken, err
}

// usage tells how many addresses of a set have an owner, and how many owners those are.
func (x *index) usage(set ranges.Set) (files, owners int) {
	seen := map[uint64]bool{}
	_ = x.scan(func(_ int, entries []byte) { // in memory it cannot fail
		for entry := range slices.Chunk(entries, entrySize) {
			if _, ok := set.Find(entryAddr(entry)); ok {
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
	x.at[addr] = x.count
	x.count++
	return nil
}

// remove takes out an entry that find or add saw: the last one takes its place.
func (x *index) remove(addr netip.Addr) error {
	i, seen := x.at[addr]
	if !seen {
		return errStale
	}
	last := make([]byte, entrySize)
	if err := x.read(last, x.count-1); err != nil {
		return err
	}
	if err := x.write(last, i); err != nil {
		return err
	}
	if moved := entryAddr(last); x.at[moved] == x.count-1 {
		x.at[moved] = i
	}
	delete(x.at, addr)
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

// errStale says that there is no index that describes the directory as it is.
var errStale = errors.New("no index of this state of the directory")

// loadIndex opens the index, once, if it describes the directory as it is.
func (s *leaseDir) loadIndex() error {
	if s.index != nil {
		return nil
	}
	dir, err := statefile.OpenOwn(filepath.Join(s.dataDir, indexDir), 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	file, err := dir.OpenFile(s.network)
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

// identity begins every index of this directory in this boot: after a power cut
// any part of a file may be old.
func (s *leaseDir) identity() (identity []byte, modTime time.Time, err error) {
	st, err := s.dir.Stat()
	if err != nil {
		return nil, modTime, err
	}
	boot, err := s.bootID()
	if err != nil {
		return nil, modTime, err
	}
	return fmt.Appendf(nil, "%s%s\n%016x %016x\n", indexMagic, boot, st.Dev, st.Ino), time.Unix(st.Mtim.Unix()), nil
}

// stampIndex makes the index describe the directory, and stamps it.
func (s *leaseDir) stampIndex() error {
	x := s.index
	if x.stamp == 0 { // a new index begins anywhere: an old one that somebody puts back must not match by chance
		x.stamp = rand.Uint64()
	}
	x.stamp = x.stamp%(stamps-1) + 1
	if x.file != nil {
		if _, err := x.file.WriteAt(x.encodeHeader(), 0); err != nil {
			return err
		}
	} else if err := s.writeIndex(); err != nil {
		return err
	}
	return s.dir.SetModTime(stampTime(x.stamp))
}

// writeIndex writes a new file.
func (s *leaseDir) writeIndex() (err error) {
	if s.index.header, _, err = s.identity(); err != nil {
		return err
	}
	dir, err := statefile.OpenOwn(filepath.Join(s.dataDir, indexDir), 0o700)
	if err != nil {
		return err
	}
	defer dir.Close()
	data := append(s.index.encodeHeader(), s.index.memory[:s.index.count*entrySize]...)
	return dir.Replace(s.network, data, leaseMode)
}

func (x *index) encodeHeader() []byte {
	b := binary.LittleEndian.AppendUint64(slices.Clone(x.header), x.stamp)
	return binary.LittleEndian.AppendUint64(b, uint64(x.count))
}

// stamps is how many stamps there are before they begin again.
const stamps = 1 << 29

// stampTime is the time that stands for a stamp: whole seconds, which every
// filesystem can store, from 1980 to 1997.
func stampTime(stamp uint64) time.Time { return time.Unix(315532800+int64(stamp%stamps), 0) }
