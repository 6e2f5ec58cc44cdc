package main

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

	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// index is a copy of what the lease directory says, in one file:
// <dataDir>/.hawser/<network>. It is never the truth.
//
//	header   identity, stamp, number of records
//	records  hash of the owner's text, address; in no order
//
// A search reads all records. A new one is appended; the last one takes the
// place of one that is removed.
//
// The stamp says whether the index describes the directory as it is. Each
// change of ours ends, under the lock, by setting the directory's modification
// time to a whole second of a past year, which stands for the stamp. No kernel
// writes such a time: as long as the directory has it, no file was created,
// deleted or renamed. The kernel's own times would not do, since two changes
// may get the same one. A call that is killed before it sets the stamp leaves a
// time of the kernel's, and the next call reads the directory.
//
// A change by somebody without the lock, between our reading of the directory and
// the stamp, is not noticed. A file that was created then is found when its name is to
// be created, a deleted one when it is verified.
type index struct {
	file   *os.File
	header []byte // identity
	stamp  uint64
	count  int
	at     map[netip.Addr]int // the records that find and add saw
}

const (
	indexDir   = ".hawser"
	indexMagic = "hawser-index-1\n"
	hashSize   = 8
	recordSize = hashSize + 16

	// scanned is how many records are read at once: memory that a process has
	// not touched before costs more than the reading.
	scanned = 8 << 10
)

// openIndex opens the index of a directory with this identity.
func openIndex(file *os.File, identity []byte) (*index, error) {
	x := &index{file: file, header: identity, at: map[netip.Addr]int{}}
	data := make([]byte, len(identity)+16)
	if _, err := file.ReadAt(data, 0); err != nil {
		return nil, err
	}
	rest, same := bytes.CutPrefix(data, identity)
	if !same {
		return nil, errStale
	}
	x.stamp = binary.LittleEndian.Uint64(rest)
	count := binary.LittleEndian.Uint64(rest[8:])
	info, err := file.Stat()
	if err != nil || count > uint64(info.Size())/recordSize || x.offset(int(count)) > info.Size() {
		return nil, errStale
	}
	x.count = int(count)
	return x, nil
}

func (x *index) offset(i int) int64 { return int64(len(x.header) + 16 + i*recordSize) }

// scan shows all records, many at once; first is the number of the first of them.
func (x *index) scan(visit func(first int, records []byte)) error {
	buf := make([]byte, min(x.count, scanned)*recordSize)
	for i := 0; i < x.count; i += scanned {
		part := buf[:min(x.count-i, scanned)*recordSize]
		if _, err := x.file.ReadAt(part, x.offset(i)); err != nil {
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
	err := x.scan(func(first int, records []byte) {
		for at := 0; at < len(records); at += recordSize {
			n := slices.Index(hashes, binary.BigEndian.Uint64(records[at:]))
			if n >= 0 {
				addr := recordAddr(records[at:])
				found[n], x.at[addr] = append(found[n], addr), first+at/recordSize
			}
		}
	})
	return found, err
}

// taken is the set of all addresses.
func (x *index) taken() (map[netip.Addr]bool, error) {
	taken := make(map[netip.Addr]bool, x.count)
	err := x.scan(func(_ int, records []byte) {
		for record := range slices.Chunk(records, recordSize) {
			taken[recordAddr(record)] = true
		}
	})
	return taken, err
}

func (x *index) add(l lease) error {
	if _, err := x.file.WriteAt(appendRecord(nil, l), x.offset(x.count)); err != nil {
		return err
	}
	x.at[l.addr] = x.count
	x.count++
	return nil
}

// remove takes out a record that find or add saw.
func (x *index) remove(addr netip.Addr) error {
	i, seen := x.at[addr]
	if !seen {
		return errStale
	}
	last := make([]byte, recordSize)
	if _, err := x.file.ReadAt(last, x.offset(x.count-1)); err != nil {
		return err
	}
	if _, err := x.file.WriteAt(last, x.offset(i)); err != nil {
		return err
	}
	if moved := recordAddr(last); x.at[moved] == x.count-1 {
		x.at[moved] = i
	}
	delete(x.at, addr)
	x.count--
	return nil
}

func appendRecord(b []byte, l lease) []byte {
	a := l.addr.As16()
	return append(binary.BigEndian.AppendUint64(b, ownerHash(l.owner)), a[:]...)
}

func recordAddr(record []byte) netip.Addr {
	return netip.AddrFrom16([16]byte(record[hashSize:recordSize])).Unmap()
}

func ownerHash(owner string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(owner))
	return h.Sum64()
}

// errStale says that there is no index that describes the directory as it is.
var errStale = errors.New("no index of this state of the directory")

// loadIndex opens the index, once, if it describes the directory as it is.
func (s *store) loadIndex() error {
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
		s.index, err = openIndex(file, identity)
	}
	if err == nil && !modTime.Equal(stampTime(s.index.stamp)) {
		err = errStale
	}
	if err != nil {
		s.index = nil
		return errors.Join(err, file.Close())
	}
	return nil
}

// identity begins every index of this directory in this boot: after a power cut
// any part of a file may be old.
func (s *store) identity() (identity []byte, modTime time.Time, err error) {
	st, err := s.dir.Stat()
	if err != nil {
		return nil, modTime, err
	}
	boot, err := sysctl.BootID()
	if err != nil {
		return nil, modTime, err
	}
	return fmt.Appendf(nil, "%s%s\n%016x %016x\n", indexMagic, boot, st.Dev, st.Ino), time.Unix(st.Mtim.Unix()), nil
}

// stampIndex makes the index describe the directory, and stamps it.
func (s *store) stampIndex() error {
	x := s.index
	x.stamp = nextStamp(x.stamp)
	if _, err := x.file.WriteAt(x.encodeHeader(), 0); err != nil {
		return err
	}
	return s.dir.SetModTime(stampTime(x.stamp))
}

// newIndex writes an index of the leases that the directory has, and stamps it.
func (s *store) newIndex() error {
	identity, _, err := s.identity()
	if err != nil {
		return err
	}
	dir, err := statefile.OpenOwn(filepath.Join(s.dataDir, indexDir), 0o700)
	if err != nil {
		return err
	}
	defer dir.Close()
	x := &index{header: identity, stamp: nextStamp(0)}
	var records []byte
	for _, l := range s.listed {
		if l.owner != "" { // a file of nobody is as good as none
			records = appendRecord(records, l)
			x.count++
		}
	}
	if err := dir.Replace(s.network, append(x.encodeHeader(), records...), leaseMode); err != nil {
		return err
	}
	return s.dir.SetModTime(stampTime(x.stamp))
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

// nextStamp follows stamp, or begins anywhere after 0: an old index that
// somebody puts back must not match by chance.
func nextStamp(stamp uint64) uint64 {
	if stamp == 0 {
		stamp = rand.Uint64()
	}
	return stamp%(stamps-1) + 1
}
