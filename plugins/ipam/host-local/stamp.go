package main

import (
	"errors"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

// load opens the index if it describes the directory as it is.
func (l *leases) load() {
	var err error
	if l.indexes == nil {
		if l.indexes, err = l.base.OpenExistingDir(indexDir); err != nil {
			l.indexes = nil
			return
		}
	}
	f, err := l.indexes.OpenFile(l.network)
	if err != nil {
		return
	}
	x, err := openIndex(f, f.Size())
	if err != nil || !l.current(x.header) {
		f.Close()
		return
	}
	l.index, l.inPlace = x, f
}

// current reports whether an index with this header describes the directory.
func (l *leases) current(h header) bool {
	info, err := l.dir.Stat()
	if err != nil || h.stamp == 0 || !info.ModTime.Equal(stampTime(h.stamp)) {
		return false
	}
	return l.learnBoot() == nil && h.boot == l.boot && h.device == info.Device && h.inode == info.Inode
}

// save writes the index and, last of all, the directory's stamp.
func (l *leases) save() error {
	h := &l.index.header
	info, err := l.dir.Stat()
	if err != nil {
		return err
	}
	if err := l.learnBoot(); err != nil {
		return err
	}
	h.boot, h.device, h.inode = l.boot, info.Device, info.Inode
	h.stamp = nextStamp(h.stamp)
	if err := l.writeIndex(); err != nil {
		return err
	}
	return l.dir.SetModTime(stampTime(h.stamp))
}

func (l *leases) writeIndex() error {
	header := l.index.encode()
	image, fresh := l.index.file.(memory)
	if !fresh {
		_, err := l.index.file.WriteAt(header, 0)
		return err
	}
	copy(image, header)
	if l.indexes == nil {
		var err error
		if l.indexes, err = l.base.OpenDir(indexDir, 0o700); err != nil {
			l.indexes = nil
			return err
		}
	}
	return l.indexes.Replace(l.network, image, leaseMode)
}

// stamps is how many numbers there are before they begin again.
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

// learnBoot reads which boot this is, once.
func (l *leases) learnBoot() error {
	if l.boot != [36]byte{} {
		return nil
	}
	fd, err := unix.Open("/proc/sys/kernel/random/boot_id", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var id [36]byte
	if n, err := unix.Read(fd, id[:]); err != nil || n != len(id) {
		return errors.Join(err, errBadIndex)
	}
	l.boot = id
	return nil
}
