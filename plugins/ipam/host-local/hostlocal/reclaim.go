package hostlocal

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// This file finds leases whose containers no longer exist (stale leases), so that ADD can reclaim them if a range set
// is full. A lease is reclaimed only with proof, because its address would otherwise be used twice. There are two
// proofs:
//
//  1. The lease is from an earlier boot, and no container survives a reboot. Its note names another boot, or it has no
//     note and its file is older than this boot. (The reference plugin writes no notes.) The directory must be on a
//     file system that no other machine can use.
//  2. Its note is from this boot and names a network namespace that no longer exists (package ns), and the host has no
//     host end of the attachment's pair, because the kernel removes a host end together with the namespace.
//
// In both cases the file must contain a container's owner as plugins write it. If there is a note, its hash must
// match this owner: a program that rewrites the file in place does not change the note.
//
// For example, a power failure leaves the leases of all pods behind. Their notes name the earlier boot, so when the
// set is full, ADD releases up to maxReclaims of them, the oldest first, and reserves the first of these addresses.
//
// A container with addresses in several sets is released completely (addOtherSets).

// maxReclaims limits the number of leases of a set that one call releases, so that the call does not take too long.
const maxReclaims = 128

// reclaim releases stale leases. It returns the first address that became free, or the reason why no address did.
func (s *leaseDir) reclaim(req *skel.Request, order iter.Seq[netip.Addr]) (free netip.Addr, reason string) {
	stale, reason := s.findStale(order, maxReclaims)
	if len(stale) == 0 {
		return free, reason
	}
	if err := s.releaseStale(req, stale); err != nil {
		return free, err.Error()
	}
	first := slices.IndexFunc(stale, func(l lease) bool { return !l.isOtherSet })
	return stale[first].addr, ""
}

// releaseStale releases leases and warns about each.
func (s *leaseDir) releaseStale(req *skel.Request, leases []lease) error {
	for _, l := range leases {
		if err := s.release(l.addr); err != nil {
			return err
		}
		req.Warn("reclaimed %s from %s%s: %s", l.addr, describeOwner(l.owner), podText(s.network, l.owner), l.reason)
	}
	return nil
}

// podText describes the pod of an owner, for messages. "" means that libcni's cache lacks its CNI_ARGS.
func podText(network, owner string) string {
	id, ifName, _ := parseOwner(owner)
	if !cni.ValidName(id) || !cni.ValidIfName(ifName) {
		return ""
	}
	var cached struct {
		Args [][2]string `json:"cniArgs"`
	}
	data, err := os.ReadFile(filepath.Join("/var/lib/cni/results", network+"-"+id+"-"+ifName))
	if err != nil || json.Unmarshal(data, &cached) != nil {
		return ""
	}
	var args []string
	for _, pair := range cached.Args {
		args = append(args, pair[0]+"="+pair[1])
	}
	if pod := skel.PodOf(strings.Join(args, ";")); pod != "" {
		return fmt.Sprintf(", pod %q", pod)
	}
	return ""
}

// minExamined is the number of leases that are examined to find the oldest ones. In a larger set, the search ends when
// there are enough stale leases, which are roughly the oldest because addresses are assigned in turn.
const minExamined = 4096

// findStale returns at most limit stale leases, and the leases of their owners in other sets. Leases from earlier boots
// come before others, and older leases before newer ones. reason explains why the other leases are not stale.
func (s *leaseDir) findStale(order iter.Seq[netip.Addr], limit int) (stale []lease, reason string) {
	r, err := s.newReclaimer()
	if err != nil {
		return nil, err.Error()
	}
	r.mayBeGone, r.uncertain = ns.MayBeGone()
	r.goneTest = sync.OnceValues(ns.Gone)
	examined := 0
	for addr := range order {
		if l, isStale := r.examine(addr); isStale {
			stale = append(stale, l)
		}
		if examined++; examined >= minExamined && len(stale) >= limit {
			break
		}
	}
	sort.SliceStable(stale, func(i, j int) bool {
		a, b := stale[i], stale[j]
		if a.isOfThisBoot == b.isOfThisBoot {
			return a.changed.Before(b.changed)
		}
		return b.isOfThisBoot
	})
	reason = fmt.Sprintf("no lease is known to be stale (%d were written without an owner note, for example by the "+
		"reference plugin)", r.withoutNote)
	if r.uncertain != nil {
		reason = r.uncertain.Error()
	}
	return r.addOtherSets(stale[:min(len(stale), limit)]), reason
}

// addOtherSets adds the leases that the owners hold in other sets, which may never be full themselves, so that each
// container is released completely. These leases come first: if the call is killed halfway, the lease in the full set
// remains, and a later call continues from it.
func (r *reclaimer) addOtherSets(stale []lease) (all []lease) {
	if r.index == nil || len(stale) == 0 {
		return stale
	}
	owners, seen := make([]string, len(stale)), map[netip.Addr]bool{}
	for i, l := range stale {
		owners[i], seen[l.addr] = l.owner, true
	}
	addrs, err := r.index.addressesOf(owners...)
	if err != nil {
		r.dropIndex()
	}
	for i, owner := range owners {
		for _, addr := range addrs[i] {
			if seen[addr] {
				continue
			}
			if l, isStale := r.examine(addr); isStale && l.owner == owner {
				l.isOtherSet = true
				all = append(all, l)
			}
		}
	}
	return append(all, stale...)
}

// mayReclaim reports whether at least one of the leases may be stale. It omits the certain test of a namespace, because
// a runtime calls STATUS repeatedly, and before Linux 6.18 this test reads all processes, which takes long.
func (s *leaseDir) mayReclaim(order iter.Seq[netip.Addr]) bool {
	r, err := s.newReclaimer()
	if err != nil {
		return false
	}
	r.mayBeGone, r.uncertain = ns.MayBeGone()
	for addr := range order {
		if _, isStale := r.examine(addr); isStale {
			return true
		}
	}
	return false
}

// leasesOfEarlierBoots returns the leases whose notes name an earlier boot, and their owners' other leases.
func (s *leaseDir) leasesOfEarlierBoots(addrs ...netip.Addr) (stale []lease) {
	r, err := s.newReclaimer()
	for _, addr := range addrs {
		if l, isStale := r.examine(addr); err == nil && isStale && l.hasNote {
			stale = append(stale, l)
		}
	}
	return r.addOtherSets(stale)
}

// lease is a lease that a reclaimer has examined.
type lease struct {
	addr         netip.Addr
	owner        string
	reason       string    // why it is stale
	changed      time.Time // ctime of the file
	note         note
	hasNote      bool
	isOfThisBoot bool // according to the note
	isOtherSet   bool // in another set than the full one
}

// reclaimer decides which leases are stale.
type reclaimer struct {
	*leaseDir
	boot         string
	bootTime     time.Time                              // older files are from earlier boots; zero if unknown
	isOneMachine bool                                   // no other machine can have written the notes
	mayBeGone    func(ns.Identity) bool                 // quick test of a namespace, certain only if it returns false
	goneTest     func() (func(ns.Identity) bool, error) // returns the certain test; nil: mayBeGone decides
	goneByCookie map[uint64]bool                        // results for namespaces, by cookie
	uncertain    error                                  // why namespaces or host ends cannot be examined
	hostEnds     map[string]bool                        // hashes of attachments with a host end; nil: not read yet
	withoutNote  int                                    // leases without a note that may be from this boot
}

func (s *leaseDir) newReclaimer() (*reclaimer, error) {
	boot, err := s.bootPrefix()
	return &reclaimer{leaseDir: s, boot: boot, bootTime: bootTime(), isOneMachine: isLocal(s.dir),
		goneByCookie: map[uint64]bool{}}, err
}

// bootTime returns a wall-clock time before which nothing was written in this boot. The clock may have been set
// since, so bootTime returns the earliest of three times: the boot by the current clock, the creation of /run, and
// the oldest namespace in ns.Pins. It returns the zero time if one of them cannot be read.
func bootTime() time.Time {
	var run unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, "/run", unix.AT_STATX_DONT_SYNC, unix.STATX_BTIME, &run) != nil ||
		run.Mask&unix.STATX_BTIME == 0 {
		return time.Time{}
	}
	earliest, created := time.Now().Add(-sysctl.Uptime()), time.Unix(run.Btime.Sec, int64(run.Btime.Nsec))
	if created.Before(earliest) {
		earliest = created
	}
	return earliestPin(earliest, ns.Pins)
}

// earliestPin returns the earlier of t and the oldest ctime in dir, where runtimes pin namespaces. A namespace is
// pinned before it gets leases, so older leases are from an earlier boot. This is needed if the clock was temporarily
// set to a time before the boot.
func earliestPin(t time.Time, dir string) time.Time {
	pins, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return time.Time{}
	}
	for _, pin := range pins {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, pin.Name()), &st) != nil {
			continue
		}
		if created := time.Unix(st.Ctim.Unix()); created.Before(t) {
			t = created
		}
	}
	return t
}

// examine reads a lease and reports whether it is stale.
func (r *reclaimer) examine(addr netip.Addr) (l lease, isStale bool) {
	l = lease{addr: addr, reason: "it is from an earlier boot"}
	l.note, l.hasNote = parseNote(readNote(r.dir, addr.String()))
	l.isOfThisBoot = l.hasNote && l.note.boot == r.boot
	if l.isOfThisBoot {
		l.reason = "its network namespace no longer exists"
		return l, r.isNetnsGone(l.note.netns) && r.readChanged(&l) && r.isContainerLease(&l) && !r.hasHostEnd(l)
	}
	return l, r.isOfEarlierBoot(&l) && r.isContainerLease(&l)
}

// isNetnsGone reports whether a namespace of this boot no longer exists. It examines each namespace once, because a
// namespace can have many leases.
func (r *reclaimer) isNetnsGone(id ns.Identity) (isGone bool) {
	isGone, isKnown := r.goneByCookie[id.Cookie]
	if isKnown || r.mayBeGone == nil {
		return isGone
	}
	isGone = r.mayBeGone(id)
	if isGone && r.goneTest != nil {
		test, err := r.goneTest()
		r.uncertain = cmp.Or(r.uncertain, err)
		isGone = test != nil && test(id)
	}
	r.goneByCookie[id.Cookie] = isGone
	return isGone
}

// isOfEarlierBoot reports whether a lease is certainly from an earlier boot. The lease must have no note, or another
// boot's note.
func (r *reclaimer) isOfEarlierBoot(l *lease) bool {
	if !r.isOneMachine || !r.readChanged(l) {
		return false
	}
	if !l.hasNote && !l.changed.Before(r.bootTime) {
		r.withoutNote++
		return false
	}
	return true
}

// readChanged sets l.changed. It returns false if the file no longer exists.
func (r *reclaimer) readChanged(l *lease) bool {
	var st unix.Stat_t
	err := unix.Fstatat(r.dir.FD(), l.addr.String(), &st, unix.AT_SYMLINK_NOFOLLOW)
	l.changed = time.Unix(st.Ctim.Unix())
	return err == nil
}

// isContainerLease sets l.owner. It reports whether the owner has the plugins' format and matches the note, if any.
func (r *reclaimer) isContainerLease(l *lease) bool {
	var err error
	if l.owner, err = r.owner(l.addr); err != nil || l.hasNote && l.note.owner != ownerHash32(l.owner) {
		return false
	}
	_, _, ok := parseOwner(l.owner)
	return ok
}

// hasHostEnd reports whether the host end of the container's pair exists. The kernel removes a host end only together
// with its peer, so an existing host end protects the lease even if an unknown process holds the namespace, or while
// the kernel is still removing the namespace. hasHostEnd returns true if the host's links cannot be listed.
func (r *reclaimer) hasHostEnd(l lease) bool {
	if r.hostEnds == nil {
		r.hostEnds = map[string]bool{}
		host := rtnl.Host()
		defer host.Close()
		links, err := host.LinkSummaries()
		r.uncertain = cmp.Or(r.uncertain, err)
		for _, l := range links {
			// An IFB is not a pair's end, and outlives the container.
			if hash, _, _ := strings.Cut(l.Alias, " "); l.IsPairEnd() {
				r.hostEnds[hash] = true
			}
		}
	}
	a := cni.Attachment{Network: r.network}
	a.ContainerID, a.IfName, _ = parseOwner(l.owner)
	return r.uncertain != nil || r.hostEnds[a.Hash()]
}

// note is the extended attribute of a lease file that records the namespace and the owner for which the lease was
// written. The file's text cannot contain the note, because it has the reference plugin's format. A note has at most 64
// bytes, which ext4 stores in the file's inode.
type note struct {
	boot      string // see bootPrefix
	netns     ns.Identity
	processes uint64 // inode of the call's PID namespace; tools compare it with PID namespaces of processes
	owner     uint32 // see ownerHash32
}

func (n note) String() string {
	return fmt.Sprintf("%s %x %x %x %08x", n.boot, n.netns.Inode, n.netns.Cookie, n.processes, n.owner)
}

// parseNote parses the text of a note. ok is false if it is not valid.
func parseNote(text []byte) (n note, ok bool) {
	words := strings.Fields(string(text))
	if len(words) != 5 || len(words[0]) != bootPrefixLen {
		return n, false
	}
	n.boot = words[0]
	for i, field := range []*uint64{&n.netns.Inode, &n.netns.Cookie, &n.processes} {
		var err error
		if *field, err = strconv.ParseUint(words[i+1], 16, 64); err != nil {
			return n, false
		}
	}
	owner, err := strconv.ParseUint(words[4], 16, 32)
	n.owner = uint32(owner)
	return n, err == nil
}

// ownerHash32 returns a hash of a lease's text.
func ownerHash32(owner string) uint32 { return uint32(ownerHash(owner)) }

const bootPrefixLen = 16

// bootPrefix returns the first digits of this boot's ID, which identify the boot in notes.
func (s *leaseDir) bootPrefix() (string, error) {
	id, err := s.bootID()
	word := strings.ReplaceAll(id, "-", "")
	return word[:min(len(word), bootPrefixLen)], err
}

// ownerNote returns the note for an owner and its namespace. It returns nil if netns is not the path of a namespace,
// because ADD works without a note.
func (s *leaseDir) ownerNote(netns, owner string) []byte {
	boot, err := s.bootPrefix()
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
	var pidNS unix.Stat_t
	_ = unix.Stat("/proc/self/ns/pid", &pidNS)
	return []byte(note{boot, id, pidNS.Ino, ownerHash32(owner)}.String())
}
