package hostlocal

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// note says for which namespace a lease was written. It is kept beside the lease's text, which is the reference's.
// Its text has at most 64 bytes as a rule: ext4 keeps so much in the file's inode.
type note struct {
	boot      string // without dashes
	inode     uint64 // of the network namespace
	cookie    uint64 // of it; 0 before Linux 5.14
	processes uint64 // inode of the namespace of processes that the writer saw
}

func (n note) String() string {
	return fmt.Sprintf("%s %x %x %x", n.boot, n.inode, n.cookie, n.processes)
}

func parseNote(text []byte) (n note, ok bool) {
	words := strings.Fields(string(text))
	if len(words) != 4 {
		return n, false
	}
	n.boot = words[0]
	for i, to := range []*uint64{&n.inode, &n.cookie, &n.processes} {
		var err error
		if *to, err = strconv.ParseUint(words[i+1], 16, 64); err != nil {
			return n, false
		}
	}
	return n, true
}

// noteOf is the note of a namespace, nil for a path that is none: host-local does not need it.
func (s *leaseDir) noteOf(netns string) []byte {
	here, err := s.newNote()
	if err != nil {
		return nil
	}
	n, err := ns.Open(netns)
	if err != nil {
		return nil
	}
	defer n.Close()
	id, err := n.Identity()
	if err != nil {
		return nil
	}
	here.inode, here.cookie = id.Inode, id.Cookie
	return []byte(here.String())
}

// newNote is what notes of this boot, by a process that sees what we see, have in common.
func (s *leaseDir) newNote() (n note, err error) {
	boot, err := s.bootID()
	if err != nil {
		return n, err
	}
	n.boot = strings.ReplaceAll(boot, "-", "")
	seen, err := os.Readlink("/proc/self/ns/pid")
	if err == nil {
		_, err = fmt.Sscanf(seen, "pid:[%d]", &n.processes)
	}
	return n, err
}

// judge tells the leases of containers that are gone for certain.
type judge struct {
	note
	booted time.Time         // not later than this boot
	used   map[uint64]string // by inode: a path
	blind  error             // why a namespace that is not in used may be used
	cookie map[uint64]uint64 // of the used namespaces that were opened
}

// newJudge looks at all processes: the caller holds the lock, so that nobody writes a lease meanwhile.
func (s *leaseDir) newJudge() (j *judge, err error) {
	j = &judge{used: map[uint64]string{}, cookie: map[uint64]uint64{}}
	if j.note, err = s.newNote(); err != nil {
		return nil, err
	}
	j.booted = bootTime()
	for use, err := range ns.Uses("/proc", true) {
		if err == nil {
			j.used[use.Inode] = use.Path
		}
		j.blind = cmp.Or(j.blind, err)
	}
	return j, nil
}

// bootTime is a time of the clock before which nothing of this boot was written, whatever the clock's steps were: /run
// is made early. It is the zero time where that cannot be known.
func bootTime() time.Time {
	var since unix.Timespec
	var run unix.Statx_t
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &since) != nil ||
		unix.Statx(unix.AT_FDCWD, "/run", unix.AT_STATX_DONT_SYNC, unix.STATX_BTIME, &run) != nil ||
		run.Mask&unix.STATX_BTIME == 0 {
		return time.Time{}
	}
	booted, made := time.Now().Add(-time.Duration(since.Nano())), time.Unix(run.Btime.Sec, int64(run.Btime.Nsec))
	if made.Before(booted) {
		return made
	}
	return booted
}

// why says why a lease's container is gone; nothing where that is not certain.
func (j *judge) why(s *leaseDir, name string) string {
	text, changed, err := s.dir.Note(name)
	if err != nil {
		return ""
	}
	n, isNote := parseNote(text)
	switch {
	case isNote && n.boot != j.boot, !isNote && changed.Before(j.booted):
		return "it is of an earlier boot"
	case !isNote, j.blind != nil, n.processes != j.processes, j.isUsed(n):
		return ""
	}
	return "no process or mount has its network namespace"
}

func (j *judge) isUsed(n note) bool {
	path, isUsed := j.used[n.inode]
	if !isUsed || n.cookie == 0 {
		return isUsed
	}
	cookie, isKnown := j.cookie[n.inode]
	if !isKnown { // the inode may be that of a later namespace
		if now, err := ns.Open(path); err == nil {
			id, _ := now.Identity()
			_ = now.Close()
			if id.Inode == n.inode {
				cookie = id.Cookie
			}
		}
		j.cookie[n.inode] = cookie
	}
	return cookie == 0 || cookie == n.cookie
}

// lease is one of a container.
type lease struct {
	addr       netip.Addr
	owner, why string
}

// dead finds leases of containers that are gone: those that were given first, as addresses are given in turn. What is
// not a container's, as plugins write it, stays.
func (s *leaseDir) dead(order iter.Seq[netip.Addr], most int) (found []lease, err error) {
	j, err := s.newJudge()
	if err != nil {
		return nil, err
	}
	for addr := range order {
		why := j.why(s, addr.String())
		if why == "" {
			continue
		}
		owner, err := s.owner(addr)
		if _, _, ok := parseOwner(owner); !ok || err != nil {
			continue
		}
		if found = append(found, lease{addr, owner, why}); len(found) == most {
			break
		}
	}
	if len(found) == 0 {
		err = j.blind
	}
	return found, err
}

// reclaimedAtOnce is how many leases a call takes back: it shall answer soon.
const reclaimedAtOnce = 128

// reclaim releases leases of containers that are gone, and says how many and, where there is none, why.
func (s *leaseDir) reclaim(req *skel.Request, order iter.Seq[netip.Addr]) (count int, why string) {
	found, err := s.dead(order, reclaimedAtOnce)
	if len(found) == 0 && err == nil {
		return 0, "of none it is certain that its container is gone"
	}
	if err != nil {
		return 0, err.Error()
	}
	owners := make([]string, len(found))
	for i, l := range found {
		owners[i] = l.owner
	}
	if s.index != nil {
		if _, err := s.index.find(owners...); err != nil {
			s.dropIndex()
		}
	}
	for _, l := range found {
		if err := s.release(l.addr); err != nil {
			return count, err.Error()
		}
		count++
		req.Warn("took %s back from %s: %s", l.addr, ownerInWords(l.owner), l.why)
	}
	return count, ""
}
