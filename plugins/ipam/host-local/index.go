package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"math/bits"
	"net/netip"
)

// index answers "which addresses has this owner" and "which address is the
// next free one" in a few reads, however many reservations there are. It is
// a copy of what the lease directory says and never the truth (leases.go).
//
// It is one file, changed in place:
//
//	header   headerSize bytes
//	owners   a hash table of reservations: hash of the owner's text, address
//	blocks   a hash table of bitmaps, each for blockAddrs addresses in a row
//
// Both tables are probed linearly and hold at most three quarters of what
// they have room for.
type index struct {
	header
	file  storage
	dirty bool // the file no longer says what its header says
}

// storage is the index's bytes: its file, or memory when it was just built.
type storage interface {
	io.ReaderAt
	io.WriterAt
}

type memory []byte

func (m memory) ReadAt(p []byte, off int64) (int, error) {
	if off > int64(len(m)) {
		return 0, io.EOF
	}
	n := copy(p, m[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m memory) WriteAt(p []byte, off int64) (int, error) { return copy(m[off:], p), nil }

const (
	indexMagic = "hawser-1"
	headerSize = 128

	slotSize   = 32   // hash of the owner, address
	blockAddrs = 4096 // addresses in a block
	blockSize  = 16 + blockAddrs/8
	window     = 16 // slots that are read at once

	minSlots  = 1024
	minBlocks = 16
)

// header describes the index. It is written whole, last of all.
type header struct {
	stamp      uint64   // the lease directory's state that the index describes, 0 = none
	boot       [36]byte // the boot in which it was written: pages reach the disk in any order
	device     uint64   // the lease directory
	inode      uint64
	slots      uint64 // room in the table of owners, a power of two
	blocks     uint64 // room in the table of blocks, a power of two
	live       uint64 // slots that are taken
	used       uint64 // slots that are or were taken
	usedBlocks uint64
}

var (
	errBadIndex = errors.New("index is damaged")
	errMany     = errors.New("index does not list the addresses of this owner")
)

func (h header) encode() []byte {
	b := make([]byte, 0, headerSize)
	b = append(b, indexMagic...)
	b = append(b, h.boot[:]...)
	for _, v := range []uint64{h.stamp, h.device, h.inode, h.slots, h.blocks, h.live, h.used, h.usedBlocks} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = binary.LittleEndian.AppendUint64(b, checksum(b))
	return append(b, make([]byte, headerSize-len(b))...)
}

func decodeHeader(b []byte) (header, error) {
	var h header
	fields := []*uint64{&h.stamp, &h.device, &h.inode, &h.slots, &h.blocks, &h.live, &h.used, &h.usedBlocks}
	end := len(indexMagic) + len(h.boot) + 8*len(fields)
	if len(b) != headerSize || string(b[:len(indexMagic)]) != indexMagic ||
		binary.LittleEndian.Uint64(b[end:]) != checksum(b[:end]) {
		return h, errBadIndex
	}
	rest := b[len(indexMagic):]
	rest = rest[copy(h.boot[:], rest):]
	for i, f := range fields {
		*f = binary.LittleEndian.Uint64(rest[8*i:])
	}
	return h, nil
}

func checksum(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

func (h header) size() int64 {
	return headerSize + int64(h.slots)*slotSize + int64(h.blocks)*blockSize
}

// openIndex reads an index of size bytes.
func openIndex(file storage, size int64) (*index, error) {
	b := make([]byte, headerSize)
	if _, err := file.ReadAt(b, 0); err != nil {
		return nil, err
	}
	h, err := decodeHeader(b)
	if err != nil {
		return nil, err
	}
	const most = 1 << 32
	if h.slots > most || h.blocks > most || bits.OnesCount64(h.slots) != 1 || bits.OnesCount64(h.blocks) != 1 || h.size() != size {
		return nil, errBadIndex
	}
	return &index{header: h, file: file}, nil
}

// newIndex returns an empty index in memory with room for n reservations, and
// for a third more before it has to grow.
func newIndex(n int) *index {
	x := &index{header: header{slots: minSlots, blocks: minBlocks}, dirty: true}
	for x.slots*9/16 < uint64(n) {
		x.slots *= 2
	}
	x.file = make(memory, x.size())
	return x
}

// lookup returns the addresses that the owner has. An owner of very many is
// errMany.
func (x *index) lookup(owner string) ([]netip.Addr, error) {
	key := ownerKey(owner)
	var addrs []netip.Addr
	many := false
	err := x.probe(key, func(_ int64, slot []byte) bool {
		if [16]byte(slot) == key {
			addrs = append(addrs, netip.AddrFrom16([16]byte(slot[16:])).Unmap())
			many = many || isMany(slot)
		}
		return many || isEmpty(slot)
	})
	if many {
		return nil, errMany
	}
	return addrs, err
}

// insert adds a reservation.
func (x *index) insert(owner string, addr netip.Addr) error {
	if x.used >= x.slots*3/4 {
		if err := x.grow(); err != nil {
			return err
		}
	}
	key := ownerKey(owner)
	at, fresh, same, many := int64(-1), false, 0, false
	err := x.probe(key, func(off int64, slot []byte) bool {
		empty := isEmpty(slot)
		if [16]byte(slot) == key {
			same++
			many = many || isMany(slot)
		}
		if at < 0 && (empty || isGone(slot)) {
			at, fresh = off, empty
		}
		return empty || many
	})
	if err != nil {
		return err
	}
	a := addr.As16()
	if same == manySlots {
		a = [16]byte{}
	}
	if !many {
		if err := x.write(append(key[:], a[:]...), at); err != nil {
			return err
		}
		x.live++
		if fresh {
			x.used++
		}
	}
	return x.mark(addr, true)
}

// remove takes a reservation out; one that is not there is an error.
func (x *index) remove(owner string, addr netip.Addr) error {
	key := ownerKey(owner)
	a := addr.As16()
	at := int64(-1)
	err := x.probe(key, func(off int64, slot []byte) bool {
		if [16]byte(slot) == key && [16]byte(slot[16:]) == a {
			at = off
		}
		return at >= 0 || isEmpty(slot)
	})
	if err != nil {
		return err
	}
	if at < 0 {
		return errBadIndex
	}
	if err := x.write(goneSlot(), at); err != nil {
		return err
	}
	x.live--
	return x.mark(addr, false)
}

// An administrator's word may stand in thousands of files. They would make
// one long row in the table, so after manySlots of them one slot says that
// there are more (by the address ::, which costs whoever gets it the same
// search in the directory).
const manySlots = 64

func isMany(slot []byte) bool { return [16]byte(slot[16:]) == [16]byte{} }

func isEmpty(slot []byte) bool { return [16]byte(slot) == [16]byte{} }

// A slot whose reservation was removed is all ones: probing goes on behind it.
func goneSlot() []byte        { return bytes.Repeat([]byte{0xff}, slotSize) }
func isGone(slot []byte) bool { return bytes.Count(slot, []byte{0xff}) == slotSize }

// ownerKey is the hash of an owner's text, never all zero.
func ownerKey(owner string) (key [16]byte) {
	h := fnv.New128a()
	h.Write([]byte(owner))
	h.Sum(key[:0])
	key[0] |= 1
	return key
}

// place is where the search for a key begins, in a table of any size.
func place(key [16]byte) uint64 {
	n := binary.BigEndian.Uint64(key[:8]) ^ binary.BigEndian.Uint64(key[8:])
	return n * 0x9e3779b97f4a7c15 >> 32
}

// probe shows the slots from the key's place on until visit says that it has
// seen enough.
func (x *index) probe(key [16]byte, visit func(off int64, slot []byte) (done bool)) error {
	buf := make([]byte, window*slotSize)
	first := place(key) & (x.slots - 1)
	for seen := uint64(0); seen < x.slots; {
		slot := (first + seen) & (x.slots - 1)
		n := min(window, x.slots-slot)
		off := headerSize + int64(slot)*slotSize
		if _, err := x.file.ReadAt(buf[:n*slotSize], off); err != nil {
			return err
		}
		for i := int64(0); i < int64(n); i++ {
			if visit(off+i*slotSize, buf[i*slotSize:(i+1)*slotSize]) {
				return nil
			}
		}
		seen += n
	}
	return errBadIndex
}

// write changes the file, whose header says from then on that it describes
// nothing.
func (x *index) write(b []byte, off int64) error {
	if !x.dirty {
		h := x.header
		h.stamp = 0
		if _, err := x.file.WriteAt(h.encode(), 0); err != nil {
			return err
		}
		x.dirty = true
	}
	_, err := x.file.WriteAt(b, off)
	return err
}
