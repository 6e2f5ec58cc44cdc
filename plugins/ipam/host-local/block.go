package main

import (
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"net/netip"
)

// block is one bitmap of the index: a bit for each of blockAddrs addresses
// in a row, set when the address is reserved.
type block struct {
	off   int64 // in the file
	found bool  // false: nothing is reserved in it, and off is where it would go
	bits  [blockAddrs / 8]byte
}

// firstFree returns the first address of the span that is not reserved.
func (x *index) firstFree(s span) (netip.Addr, bool, error) {
	for addr := s.from; ; {
		b, err := x.block(addr)
		if err != nil {
			return netip.Addr{}, false, err
		}
		at := offset(addr)
		n := blockAddrs - at
		if d, ok := distance(addr, s.to); ok && d < uint64(n) {
			n = int(d) + 1
		}
		if free := b.firstZero(at, n); free >= 0 {
			return plus(addr, uint64(free-at)), true, nil
		}
		last := plus(addr, uint64(n-1))
		if last == s.to {
			return netip.Addr{}, false, nil
		}
		addr = last.Next()
	}
}

// freeIn returns the first address of the spans that is not reserved.
func (x *index) freeIn(spans []span) (netip.Addr, bool, error) {
	for _, s := range spans {
		if addr, ok, err := x.firstFree(s); ok || err != nil {
			return addr, ok, err
		}
	}
	return netip.Addr{}, false, nil
}

// firstZero returns the first clear bit of the n from bit at on, or -1.
func (b *block) firstZero(at, n int) int {
	for i := at; i < at+n; {
		word := ^binary.LittleEndian.Uint64(b.bits[i/64*8:]) >> (i % 64)
		if word != 0 {
			if i += bits.TrailingZeros64(word); i < at+n {
				return i
			}
			return -1
		}
		i = (i/64 + 1) * 64
	}
	return -1
}

// mark sets or clears the address's bit.
func (x *index) mark(addr netip.Addr, taken bool) error {
	b, err := x.block(addr)
	if err != nil {
		return err
	}
	if !b.found && x.usedBlocks >= x.blocks*3/4 {
		if err := x.grow(); err != nil {
			return err
		}
		if b, err = x.block(addr); err != nil {
			return err
		}
	}
	at := offset(addr)
	if taken {
		b.bits[at/8] |= 1 << (at % 8)
	} else {
		b.bits[at/8] &^= 1 << (at % 8)
	}
	if b.found {
		return x.write(b.bits[at/8:at/8+1], b.off+16+int64(at/8))
	}
	x.usedBlocks++
	key := blockKey(addr)
	return x.write(append(key[:], b.bits[:]...), b.off)
}

// block finds the block of an address.
func (x *index) block(addr netip.Addr) (*block, error) {
	key := blockKey(addr)
	buf := make([]byte, blockSize)
	start := headerSize + int64(x.slots)*slotSize
	first := place(key)
	for i := uint64(0); i < x.blocks; i++ {
		off := start + int64((first+i)&(x.blocks-1))*blockSize
		if _, err := x.file.ReadAt(buf, off); err != nil {
			return nil, err
		}
		switch [16]byte(buf) {
		case key:
			return &block{off: off, found: true, bits: [blockAddrs / 8]byte(buf[16:])}, nil
		case [16]byte{}:
			return &block{off: off}, nil
		}
	}
	return nil, errBadIndex
}

// blockKey is the first address of the block, and never zero.
func blockKey(addr netip.Addr) [16]byte {
	key := addr.As16()
	key[14] &= 0xf0 // blockAddrs has 12 bits
	key[15] = 1
	return key
}

// offset is the address's place in its block.
func offset(addr netip.Addr) int {
	_, low := halves(addr)
	return int(low % blockAddrs)
}

// plus is addr+n, inside a block.
func plus(addr netip.Addr, n uint64) netip.Addr {
	b := addr.As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+n)
	sum := netip.AddrFrom16(b)
	if addr.Is4() {
		return sum.Unmap()
	}
	return sum
}

// grow moves the index to memory, with twice the room and without the slots
// of removed reservations.
func (x *index) grow() error {
	old := make([]byte, x.size())
	if _, err := x.file.ReadAt(old, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	bigger := newIndex(int(x.live) + 1)
	bigger.stamp, bigger.boot, bigger.device, bigger.inode = x.stamp, x.boot, x.device, x.inode
	for bigger.blocks*3/4 < 2*x.usedBlocks {
		bigger.blocks *= 2
	}
	bigger.file = make(memory, bigger.size())
	blocks := headerSize + int(x.slots)*slotSize
	for at := headerSize; at < blocks; at += slotSize {
		if slot := old[at : at+slotSize]; !isEmpty(slot) && !isGone(slot) {
			if err := bigger.copySlot(slot); err != nil {
				return err
			}
		}
	}
	for at := blocks; at < len(old); at += blockSize {
		if key := [16]byte(old[at:]); key != [16]byte{} {
			if err := bigger.copyBlock(key, old[at:at+blockSize]); err != nil {
				return err
			}
		}
	}
	*x = *bigger
	return nil
}

// copySlot adds a reservation of another index.
func (x *index) copySlot(slot []byte) error {
	at := int64(-1)
	err := x.probe([16]byte(slot), func(off int64, s []byte) bool {
		if isEmpty(s) {
			at = off
		}
		return at >= 0
	})
	if err != nil {
		return err
	}
	x.live++
	x.used++
	return x.write(slot, at)
}

// copyBlock adds a block of another index.
func (x *index) copyBlock(key [16]byte, content []byte) error {
	b, err := x.block(netip.AddrFrom16(key))
	if err != nil {
		return err
	}
	x.usedBlocks++
	return x.write(content, b.off)
}
