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

// note says for which namespace a lease was written, and for whom. It is kept beside the lease's text, which is the
// reference's. Its own has at most 64 bytes: ext4 keeps so much in the file's inode.
type note struct {
	boot      string // see bootWord
	netns     ns.Identity
	processes uint64 // inode of the PID namespace of the call, for whoever looks at processes
	owner     uint32 // see ownerWord
}

func (n note) String() string {
	return fmt.Sprintf("%s %x %x %x %08x", n.boot, n.netns.Inode, n.netns.Cookie, n.processes, n.owner)
}

func parseNote(text []byte) (n note, ok bool) {
	words := strings.Fields(string(text))
	if len(words) != 5 || len(words[0]) != bootDigits {
		return n, false
	}
	n.boot = words[0]
	for i, to := range []*uint64{&n.netns.Inode, &n.netns.Cookie, &n.processes} {
		var err error
		if *to, err = strconv.ParseUint(words[i+1], 16, 64); err != nil {
			return n, false
		}
	}
	owner, err := strconv.ParseUint(words[4], 16, 32)
	n.owner = uint32(owner)
	return n, err == nil
}

// ownerWord is a hash of a lease's text: who rewrites that in place leaves the note.
func ownerWord(owner string) uint32 { return uint32(ownerHash(owner)) }

const bootDigits = 16

// bootWord is the name of this boot in notes: the first digits of its random number.
func (s *leaseDir) bootWord() (string, error) {
	id, err := s.bootID()
	word := strings.ReplaceAll(id, "-", "")
	return word[:min(len(word), bootDigits)], err
}

// noteOf is the note of an owner's namespace, nil for a path that is none: host-local does not need it.
func (s *leaseDir) noteOf(netns, owner string) []byte {
	boot, err := s.bootWord()
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
	var here unix.Stat_t
	_ = unix.Stat("/proc/self/ns/pid", &here)
	return []byte(note{boot, id, here.Ino, ownerWord(owner)}.String())
}

// judge tells the leases of containers that are gone for certain.
type judge struct {
	*leaseDir
	boot         string
	booted       time.Time // nothing of this boot was written before; zero where nothing says when
	isOneMachine bool      // what is of another boot is of this machine
	mayBeGone    func(ns.Identity) bool
	isGone       func() (func(ns.Identity) bool, error) // for namespaces that may be gone; nil: mayBeGone decides
	known        map[uint64]bool                        // whether a namespace is gone, by cookie
	blind        error                                  // why that cannot be known
	ends         map[string]bool                        // hashes of the attachments that have a link on the host
	unnoted      int                                    // leases without a note that may be of this boot
}

func (s *leaseDir) newJudge() (*judge, error) {
	boot, err := s.bootWord()
	return &judge{leaseDir: s, boot: boot, booted: bootTime(), isOneMachine: s.dir.IsOfOneMachine(),
		known: map[uint64]bool{}}, err
}

// bootTime is a time of the clock before which nothing of this boot was written: that of the boot by the clock as it is
// now, or of /run, which is made early. It is the zero time where that cannot be known.
func bootTime() time.Time {
	var run unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, "/run", unix.AT_STATX_DONT_SYNC, unix.STATX_BTIME, &run) != nil ||
		run.Mask&unix.STATX_BTIME == 0 {
		return time.Time{}
	}
	booted, made := time.Now().Add(-sysctl.SinceBoot()), time.Unix(run.Btime.Sec, int64(run.Btime.Nsec))
	if made.Before(booted) {
		booted = made
	}
	return beforePins(booted, ns.Pins)
}

// beforePins is a time not after another one, nor after any namespace was put where runtimes keep them: it is there
// before its leases. So it is known when the clock was set back for a while, below the time of the boot.
func beforePins(t time.Time, dir string) time.Time {
	pins, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return time.Time{}
	}
	for _, pin := range pins {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, pin.Name()), &st) != nil {
			continue
		}
		if made := time.Unix(st.Ctim.Unix()); made.Before(t) {
			t = made
		}
	}
	return t
}

// lease is one of a container that is gone.
type lease struct {
	addr         netip.Addr
	owner        string
	why          string
	changed      time.Time
	note         note
	isNoted      bool
	isOfThisBoot bool // as the note says
	isOther      bool // of another set than the full one
}

// look judges a lease by its note or its age. isDead says that its container is gone for certain.
func (j *judge) look(addr netip.Addr) (l lease, isDead bool) {
	l = lease{addr: addr, why: "it is of an earlier boot"}
	l.note, l.isNoted = parseNote(j.dir.Note(addr.String()))
	l.isOfThisBoot = l.isNoted && l.note.boot == j.boot
	if l.isOfThisBoot {
		l.why = "nothing has its network namespace any more"
		return l, j.hasGone(l.note.netns) && j.readAge(&l) && j.isContainers(&l) && !j.hasEnd(l)
	}
	return l, j.isOfEarlierBoot(&l) && j.isContainers(&l)
}

// isOfEarlierBoot reports whether a lease without a note of this boot is of an earlier boot for certain.
func (j *judge) isOfEarlierBoot(l *lease) bool {
	if !j.isOneMachine || !j.readAge(l) {
		return false
	}
	if !l.isNoted && !l.changed.Before(j.booted) {
		j.unnoted++
		return false
	}
	return true
}

// readAge reports whether the lease is still there.
func (j *judge) readAge(l *lease) bool {
	var err error
	l.changed, err = j.dir.Changed(l.addr.String())
	return err == nil
}

// hasGone asks once whether a namespace of this boot is gone. One may have many leases.
func (j *judge) hasGone(id ns.Identity) (isGone bool) {
	isGone, isKnown := j.known[id.Cookie]
	if isKnown || j.mayBeGone == nil {
		return isGone
	}
	isGone = j.mayBeGone(id)
	if isGone && j.isGone != nil {
		isCertain, err := j.isGone()
		j.blind = cmp.Or(j.blind, err)
		isGone = isCertain != nil && isCertain(id)
	}
	j.known[id.Cookie] = isGone
	return isGone
}

// isContainers reads whose lease it is: a container's, as plugins write it, and by the text that the note was for.
func (j *judge) isContainers(l *lease) bool {
	var err error
	if l.owner, err = j.owner(l.addr); err != nil || l.isNoted && l.note.owner != ownerWord(l.owner) {
		return false
	}
	_, _, isContainers := parseOwner(l.owner)
	return isContainers
}

// hasEnd reports whether the host has an end of a pair that is the container's: it goes with the other end alone. So it
// keeps the address also where something has the namespace that nobody sees, and while the kernel clears it up.
func (j *judge) hasEnd(l lease) bool {
	if j.ends == nil {
		j.ends = map[string]bool{}
		host := rtnl.Host()
		defer host.Close()
		links, err := host.Briefly()
		j.blind = cmp.Or(j.blind, err)
		for _, l := range links {
			if hash, _, _ := strings.Cut(l.Alias, " "); l.IsPairEnd() { // bandwidth's IFB stays when the container goes
				j.ends[hash] = true
			}
		}
	}
	a := cni.Attachment{Network: j.network}
	a.ContainerID, a.IfName, _ = parseOwner(l.owner)
	return j.blind != nil || j.ends[a.Hash()]
}

// judgedAtLeast is how many leases are judged, so that the oldest of them can be taken. In a larger set the turn in
// which addresses are given has to do.
const judgedAtLeast = 4096

// mayReclaim reports whether one of the leases may be stale. Before Linux 6.18 it does not read processes, because a
// runtime calls STATUS repeatedly, and reading many processes takes long.
func (s *leaseDir) mayReclaim(order iter.Seq[netip.Addr]) bool {
	j, err := s.newJudge()
	if err != nil {
		return false
	}
	j.mayBeGone, j.blind = ns.MayBeGone()
	for addr := range order {
		if _, isDead := j.look(addr); isDead {
			return true
		}
	}
	return false
}

// dead finds leases of containers that are gone, those of earlier boots before others and then the oldest first. It
// says why others stay.
func (s *leaseDir) dead(order iter.Seq[netip.Addr], most int) (found []lease, why string) {
	j, err := s.newJudge()
	if err != nil {
		return nil, err.Error()
	}
	j.mayBeGone, j.blind = ns.MayBeGone()
	j.isGone = sync.OnceValues(ns.Gone)
	judged := 0
	for addr := range order {
		if l, isDead := j.look(addr); isDead {
			found = append(found, l)
		}
		if judged++; judged >= judgedAtLeast && len(found) >= most {
			break
		}
	}
	sort.SliceStable(found, func(i, j int) bool {
		a, b := found[i], found[j]
		if a.isOfThisBoot == b.isOfThisBoot {
			return a.changed.Before(b.changed)
		}
		return b.isOfThisBoot
	})
	why = fmt.Sprintf("of none is it certain that its container is gone (without a note, as the reference's: %d)",
		j.unnoted)
	if j.blind != nil {
		why = j.blind.Error()
	}
	return j.withOthers(found[:min(len(found), most)]), why
}

// withOthers puts what the owners of leases have in other sets, which may never be full, before them: no half of a
// container's addresses stays, also after a kill, since the full set's own lease is met again.
func (j *judge) withOthers(found []lease) (all []lease) {
	if j.index == nil || len(found) == 0 {
		return found
	}
	owners, has := make([]string, len(found)), map[netip.Addr]bool{}
	for i, l := range found {
		owners[i], has[l.addr] = l.owner, true
	}
	addrs, err := j.index.find(owners...)
	if err != nil {
		j.dropIndex()
	}
	for i, owner := range owners {
		for _, addr := range addrs[i] {
			if has[addr] {
				continue
			}
			if l, isDead := j.look(addr); isDead && l.owner == owner {
				l.isOther = true
				all = append(all, l)
			}
		}
	}
	return append(all, found...)
}

// ofEarlierBoots are those of the leases whose notes say that they are of another boot, with what else their owners
// have: they are nobody's.
func (s *leaseDir) ofEarlierBoots(addrs ...netip.Addr) (found []lease) {
	j, err := s.newJudge()
	for _, addr := range addrs {
		if l, isDead := j.look(addr); err == nil && isDead && l.isNoted {
			found = append(found, l)
		}
	}
	return j.withOthers(found)
}

// reclaimedAtOnce is how many leases of a set a call takes back: it shall answer soon.
const reclaimedAtOnce = 128

// reclaim releases leases of containers that are gone. It returns the address that is to be given first, or says why
// there is none.
func (s *leaseDir) reclaim(req *skel.Request, order iter.Seq[netip.Addr]) (free netip.Addr, why string) {
	found, why := s.dead(order, reclaimedAtOnce)
	if len(found) == 0 {
		return free, why
	}
	if err := s.takeBack(req, found); err != nil {
		return free, err.Error()
	}
	first := slices.IndexFunc(found, func(l lease) bool { return !l.isOther })
	return found[first].addr, ""
}

// takeBack releases leases and says so for each.
func (s *leaseDir) takeBack(req *skel.Request, leases []lease) error {
	for _, l := range leases {
		if err := s.release(l.addr); err != nil {
			return err
		}
		req.Warn("took %s back from %s%s: %s", l.addr, ownerInWords(l.owner), podOf(s.network, l.owner), l.why)
	}
	return nil
}

// podOf is which pod an owner is of, for messages, where the runtime's libcni remembers the CNI_ARGS of its ADD.
func podOf(network, owner string) string {
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
	args := map[string]string{}
	for _, pair := range cached.Args {
		args[pair[0]] = pair[1]
	}
	if args[podName] == "" {
		return ""
	}
	return fmt.Sprintf(", pod %q", args[podSpace]+"/"+args[podName])
}
