package main

import (
	"context"
	"errors"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/statefile"
)

// leases is the locked directory of one network together with its index.
//
// The directory is the truth and others change it too: the reference plugin
// under the same lock, administrators without it. What says that the index
// still describes the directory is the directory's modification time: the
// last thing that we do under the lock is to set it to a whole second of a
// past year that stands for a number in the index. No kernel writes such a
// time, so while it stands no file came, went or was renamed; the kernel's
// own times would not do, since two changes may get the same one. A file
// rewritten in place does not show, so whatever the index finds is verified
// by reading that one file. In every doubt the directory is read.
//
// Who changes the directory without the lock in the very moment between our
// look at it and the stamp is not noticed. A file that came is found when its
// name is to be created, one that went when it is verified.
type leases struct {
	*store
	network string
	indexes *statefile.Dir // <dataDir>/.hawser
	index   *index         // nil until it is needed, and after it failed
	inPlace *statefile.File
	boot    [36]byte // the boot that we are in, once it was needed
	listed  []lease  // what the directory said, when this call had to read it
	changed bool     // this call changed the directory
	moving  bool     // somebody changed the directory while we read it
}

const indexDir = ".hawser"

// openLeases opens and locks a network's directory; see openStore.
func openLeases(ctx context.Context, dataDir, network string, create bool) (*leases, error) {
	s, err := openStore(ctx, dataDir, network, create)
	if err != nil {
		return nil, err
	}
	return &leases{store: s, network: network}, nil
}

// of returns the addresses that an owner holds.
func (l *leases) of(owner string) ([]netip.Addr, error) {
	addrs, err := l.lookup(owner)
	if err != nil || l.listed != nil {
		return addrs, err
	}
	for _, addr := range addrs {
		if holder, err := l.owner(addr); err != nil || holder != owner {
			if err := l.read(); err != nil {
				return nil, err
			}
			return l.lookup(owner)
		}
	}
	return addrs, nil
}

func (l *leases) lookup(owner string) (addrs []netip.Addr, err error) {
	err = l.ask(func(x *index) error {
		addrs, err = x.lookup(owner)
		return err
	})
	if !errors.Is(err, errMany) {
		return addrs, err
	}
	for _, lease := range l.listed { // ask had to read the directory
		if lease.owner == owner {
			addrs = append(addrs, lease.addr)
		}
	}
	return addrs, nil
}

// ask puts a question to the index, and to a new one when it cannot answer.
func (l *leases) ask(question func(*index) error) error {
	if l.index == nil {
		l.load()
	}
	if l.index != nil && question(l.index) == nil {
		return nil
	}
	if err := l.read(); err != nil {
		return err
	}
	return question(l.index)
}

// tell keeps the index up with a change of the directory.
func (l *leases) tell(change func(*index) error) {
	l.changed = true
	if l.index != nil && change(l.index) != nil {
		l.index = nil
	}
}

// take reserves the first free address of the spans for the owner; ok is
// false when there is none.
func (l *leases) take(spans []span, owner string) (addr netip.Addr, ok bool, err error) {
	for {
		addr, ok, err = l.free(spans)
		if err != nil {
			return addr, false, err
		}
		if !ok && l.listed == nil {
			// Nobody is told that nothing is left on the index's word.
			if err := l.read(); err != nil {
				return addr, false, err
			}
			continue
		}
		if !ok {
			return addr, false, nil
		}
		err = l.reserve(addr, owner)
		if !errors.Is(err, errTaken) {
			return addr, err == nil, err
		}
		// A file that was empty, or none, when the directory was read.
		holder, err := l.owner(addr)
		if err != nil {
			return addr, false, err
		}
		l.tell(func(x *index) error { return x.insert(holder, addr) })
	}
}

func (l *leases) free(spans []span) (addr netip.Addr, ok bool, err error) {
	err = l.ask(func(x *index) (err error) {
		addr, ok, err = x.freeIn(spans)
		return err
	})
	return addr, ok, err
}

// reserve reserves one address. The error matches errTaken when somebody has
// it.
func (l *leases) reserve(addr netip.Addr, owner string) error {
	err := l.store.reserve(addr, owner)
	l.changed = true // even in failure: a file of nobody may be gone
	if err == nil {
		l.tell(func(x *index) error { return x.insert(owner, addr) })
	}
	return err
}

// release gives an address of the owner back.
func (l *leases) release(addr netip.Addr, owner string) error {
	if err := l.store.release(addr); err != nil {
		return err
	}
	l.tell(func(x *index) error { return x.remove(owner, addr) })
	return nil
}

// discard removes a file that nobody owns.
func (l *leases) discard(addr netip.Addr) error {
	l.changed = true
	return l.store.release(addr)
}

// setLast remembers the address that a set gave away last.
func (l *leases) setLast(set int, addr netip.Addr) error {
	l.changed = true
	return l.store.setLast(set, addr)
}

// close makes the index describe the directory as it is now and gives the
// lock back. An index that cannot be written is no error: the next call
// reads the directory.
func (l *leases) close() error {
	if l.index != nil && (l.changed || l.index.dirty) && !l.moving {
		if l.save() != nil && l.indexes != nil {
			l.indexes.Remove(l.network)
		}
	}
	if l.inPlace != nil {
		l.inPlace.Close()
	}
	if l.indexes != nil {
		l.indexes.Close()
	}
	return l.store.close()
}

// read reads the directory and makes a new index of it.
func (l *leases) read() error {
	if err := l.dir.Sweep(); err != nil {
		return err
	}
	before, err := l.dir.Stat()
	if err != nil {
		return err
	}
	list, err := l.leases()
	if err != nil {
		return err
	}
	x, err := indexOf(list)
	if err != nil {
		return err
	}
	after, err := l.dir.Stat()
	if err != nil {
		return err
	}
	// Our own changes of this call are over; these are somebody else's.
	l.moving = before.ModTime != after.ModTime
	l.index, l.listed = x, list
	return nil
}

// indexOf makes an index of leases. A file of nobody is as good as none.
func indexOf(list []lease) (*index, error) {
	x := newIndex(len(list))
	for _, l := range list {
		if l.owner == "" {
			continue
		}
		if err := x.insert(l.owner, l.addr); err != nil {
			return nil, err
		}
	}
	return x, nil
}
