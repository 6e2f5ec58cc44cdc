package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// Survey is a snapshot of the node's attachments, and of the evidence that their containers are live: the runtimes'
// answers, the network namespaces in use, and the host's links.
type Survey struct {
	Attachments []*Attachment
	Damaged     error // errors of single files; the attachments of these files must be kept
	*Runtimes
	namespaces map[uint64]namespace // namespaces that processes use or have mounted, by inode
	hostLinks  map[string]bool      // names of the host's links
	hostInode  uint64               // inode of the host's namespace
	start      time.Time            // before the first query, by the clock that file times use
	isOurs     func(file string) bool
	// contents reads the namespaces, and goneTest returns ns.Gone's test. Each runs at most once, and only if an
	// attachment may be garbage.
	contents func() *contents
	goneTest func() (func(ns.Identity) bool, error)
}

type namespace struct {
	path   string // path to the namespace
	isUsed bool   // a process is in it or has it open
}

// contents represents the contents of the namespaces that containers may use.
type contents struct {
	marks  map[mark]uint64     // inode of the namespace that has the mark; 0 = not found
	active map[uint64]string   // why a container may be in the namespace although no mark shows it
	owners map[uint64][]string // IDs of the containers that are known to be in each namespace
}

// mark identifies an attachment in a namespace by its interface and an address or, without one, a MAC address.
type mark struct {
	link string
	addr netip.Addr
	mac  string
}

// Survey queries the runtimes and the kernel, and lists the attachments last. Their answers may lack an attachment that
// was created after a query, but Classify keeps an attachment that was written after the survey began. With an error it
// returns no Survey, because attachments that could not be read must be kept. The Survey also searches namespaces for
// the marks of former attachments.
func (n *Node) Survey(ctx context.Context, former ...*Attachment) (s *Survey, err error) {
	s = &Survey{hostLinks: map[string]bool{}, goneTest: sync.OnceValues(ns.Gone), isOurs: n.IsOurs}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return nil, err
	}
	s.start, s.Runtimes = time.Unix(now.Unix()), n.queryRuntimes(ctx)
	if err := s.findNamespaces(former); err != nil {
		return nil, err
	}
	host := rtnl.Host()
	defer host.Close()
	links, err := host.LinkSummaries()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		s.hostLinks[l.Name] = true
	}
	if s.Attachments, s.Damaged, err = n.Read(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// CheckPIDs returns an error if this process cannot see the processes of containers, because it runs in another PID
// namespace. A whole node may be in a PID namespace (kind, LXC). CheckPIDs recognizes this by an ADD that ran in the
// PID namespace, or by a container's process in it.
func (s *Survey) CheckPIDs() error {
	var pidNS unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &pidNS); err != nil {
		return err
	}
	isEvidence := func(a *Attachment) bool {
		inode := s.namespaceOf(a)
		return s.namespaces[inode].isUsed && inode != s.hostInode ||
			slices.ContainsFunc(a.Holdings, func(h cni.Holding) bool { return h.Processes == pidNS.Ino })
	}
	if pidNS.Ino == ns.InitialPIDs || len(s.Attachments) == 0 || slices.ContainsFunc(s.Attachments, isEvidence) {
		return nil
	}
	return fmt.Errorf("the PID namespace pid:[%d] of this process does not show the processes of containers: run it "+
		"in the node's PID namespace (hostPID: true, podman run --pid host, nsenter --target 1 --pid)", pidNS.Ino)
}

// findNamespaces finds the host's network namespace, and all that processes are in, have open or have mounted.
func (s *Survey) findNamespaces(former []*Attachment) error {
	s.namespaces = map[uint64]namespace{}
	s.contents = sync.OnceValue(func() *contents { return s.readNamespaces(former) })
	var self unix.Stat_t
	err := unix.Stat("/proc/self/ns/net", &self)
	s.hostInode = self.Ino
	for use, useErr := range ns.Uses("/proc", true) {
		if err = cmp.Or(err, useErr); useErr != nil {
			continue
		}
		isUsed := !use.IsMount && !s.isOfDHCPDaemon(use.Path)
		if known := s.namespaces[use.Inode]; known.path == "" || isUsed {
			s.namespaces[use.Inode] = namespace{use.Path, known.isUsed || isUsed}
		}
	}
	return err
}

// isOfDHCPDaemon reports whether the path of a use is a descriptor of dhcp's daemon, which keeps a descriptor until
// DEL, even if the namespace is only mounted. The daemon is in the host's network namespace. Of a container's process,
// neither arguments nor program are read, because the container could make the kernel wait for them (FUSE).
func (s *Survey) isOfDHCPDaemon(path string) bool {
	process, task, _ := strings.Cut(path, "/task/")
	if s.isOurs == nil || !strings.Contains(task, "/fd/") {
		return false
	}
	var netns unix.Stat_t
	if unix.Stat(process+"/ns/net", &netns) != nil || netns.Ino != s.hostInode {
		return false
	}
	text, _ := os.ReadFile(process + "/cmdline") // a process that has ended uses nothing
	args := strings.Split(string(text), "\x00")
	return len(args) > 1 && args[1] == "daemon" && cni.IsPlugin(filepath.Base(args[0]), "dhcp") &&
		s.isOurs(process+"/exe")
}

// readNamespaces reads all namespaces except the host's and the namespaces that unprivileged users created. No runtime
// attaches the latter, and a user can create thousands of them. A container can cause an error, which therefore only
// concerns its own namespace.
func (s *Survey) readNamespaces(former []*Attachment) *contents {
	found := &contents{marks: map[mark]uint64{}, active: map[uint64]string{}, owners: map[uint64][]string{}}
	for _, a := range slices.Concat(s.Attachments, former) {
		for _, m := range append(a.marks(), a.macMark()) {
			found.marks[m] = 0
		}
	}
	for inode, n := range s.namespaces {
		if err := s.readNamespace(found, inode, n); err != nil {
			found.active[inode] = "it cannot be read: " + err.Error()
		}
	}
	for _, a := range s.Attachments {
		inode := s.recordedNetns(a)
		for _, m := range a.marks() {
			inode = cmp.Or(inode, found.marks[m])
		}
		found.owners[inode] = append(found.owners[inode], a.ContainerID)
	}
	return found
}

// readNamespace adds the marks of a namespace, and whether a link is up in it. A used namespace that is no longer at
// its path is treated as active, because another process may use it after the process in the path has exited.
func (s *Survey) readNamespace(found *contents, inode uint64, n namespace) error {
	if inode == s.hostInode {
		return nil
	}
	if n.isUsed {
		found.active[inode] = "processes use it"
	}
	netns, err := ns.Open(n.path)
	if err != nil {
		return nil
	}
	defer netns.Close()
	if id, err := netns.Identity(); err != nil || id.Inode != inode {
		return err
	}
	delete(found.active, inode)
	if netns.IsUnprivileged() {
		return nil
	}
	c, err := rtnl.Dial(netns)
	if err != nil {
		return err
	}
	defer c.Close()
	const loopback = 1 // index of lo in each namespace
	links, err := c.Links()
	names := map[int]string{}
	record := func(m mark) {
		if _, isWanted := found.marks[m]; isWanted {
			found.marks[m] = inode
		}
	}
	for _, l := range links {
		names[l.Index] = l.Name
		if n.isUsed && l.Up && l.Index != loopback {
			found.active[inode] = "processes use it, and a link in it is up"
		}
		record(mark{link: l.Name, mac: l.MAC.String()})
	}
	return errors.Join(err, c.EachAddr(func(link int, addr netip.Addr) { record(mark{link: names[link], addr: addr}) }))
}

// marks returns the marks by which the attachment can be found in a namespace. A loopback has none, because the
// loopbacks of all namespaces are equal.
func (a *Attachment) marks() (marks []mark) {
	if a.IsLoopback() {
		return nil
	}
	for _, addr := range a.Addrs() {
		marks = append(marks, mark{link: a.IfName, addr: addr})
	}
	if m := a.macMark(); marks == nil && m.mac != "" {
		marks = append(marks, m)
	}
	return marks
}

// macMark returns the mark with the MAC address in the result; its mac is empty if that is unknown.
func (a *Attachment) macMark() mark {
	i, _ := a.Result().ContainerInterface(a.IfName)
	if a.IsLoopback() {
		i.MAC = ""
	}
	return mark{link: a.IfName, mac: strings.ToLower(i.MAC)}
}

// identities returns the identities of the container's namespace that plugins recorded in this boot.
func (a *Attachment) identities() (ids []ns.Identity) {
	for _, h := range a.Holdings {
		if id := (ns.Identity{Inode: h.NetnsInode, Cookie: h.NetnsCookie}); id.Inode != 0 && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// recordedNetns returns the inode of the existing namespace that the attachment's path or the plugins' records name; 0
// if no such namespace exists. It prefers a namespace that processes use.
func (s *Survey) recordedNetns(a *Attachment) (inode uint64) {
	if netns, err := openNetns(a.Netns); err == nil {
		defer netns.Close()
		if id, err := netns.Identity(); err == nil {
			inode = id.Inode
		}
	}
	for _, id := range a.identities() {
		if !s.namespaces[inode].isUsed && s.exists(id) {
			inode = id.Inode
		}
	}
	return inode
}

// exists reports whether the survey has the namespace. It returns true if the namespace cannot be opened or compared.
func (s *Survey) exists(id ns.Identity) bool {
	n, isFound := s.namespaces[id.Inode]
	if !isFound {
		return false
	}
	netns, err := ns.Open(n.path)
	if err != nil {
		return true
	}
	defer netns.Close()
	actual, err := netns.Identity()
	// With another inode, the path now refers to another namespace. A cookie of 0 is unknown.
	return err != nil || actual.Inode != id.Inode || actual.Cookie == 0 || id.Cookie == 0 || actual.Cookie == id.Cookie
}

// namespaceOf returns the inode of the existing namespace that is recorded for the attachment or has one of its marks;
// 0 if no such namespace exists.
func (s *Survey) namespaceOf(a *Attachment) (inode uint64) {
	if inode = s.recordedNetns(a); inode != 0 {
		return inode
	}
	for _, m := range a.marks() {
		inode = cmp.Or(inode, s.contents().marks[m])
	}
	return inode
}

// unclaimedNetns returns the inode of a namespace that may be the attachment's although no record names it, and the
// reason. No other container is known to be in the namespace, and it is active or cannot be read. The inode is 0 if no
// namespace qualifies.
func (s *Survey) unclaimedNetns(a *Attachment) (inode uint64, reason string) {
	isOther := func(id string) bool { return id != a.ContainerID }
	for inode, reason := range s.contents().active {
		if !slices.ContainsFunc(s.contents().owners[inode], isOther) {
			return inode, reason
		}
	}
	return 0, ""
}

// lastWritten returns the latest time at which the runtime's record or a holding of the attachment was written.
func (a *Attachment) lastWritten() (t time.Time) {
	t = a.Written
	for _, h := range a.Holdings {
		if h.Since.After(t) {
			t = h.Since
		}
	}
	return t
}

const noRuntime = "no runtime knows its container, and no process uses its namespace"

// MinAge is the minimum age of garbage. Any is the age since the last write. Pinned is the age since ADD, because the
// daemon of dhcp writes at each renewal. Pinned applies while the namespace exists, because runtimes do not list a pod
// whose start takes long.
type MinAge struct{ Any, Pinned time.Duration }

// clockError limits how far in the future the date of an ADD in progress may be. An even later date is from a wrong
// clock, so it is not evidence of the age.
const clockError = 5 * time.Minute

// Classify returns the reason why an attachment is garbage or, with an empty garbage, the reason why it must be kept. A
// file in libcni's cache or a mounted namespace is not evidence of a live container, because both may outlive the
// container. A missing path is not evidence that the namespace no longer exists. An attachment that was written
// less than minAge before the survey is kept, and one of unknown age unless its namespace certainly no longer exists.
func (s *Survey) Classify(a *Attachment, minAge MinAge) (garbage, kept string) {
	hasHostEnd := s.hostLinks[FirstWord(a.HostEnd())]
	age := s.start.Sub(a.lastWritten())
	isFuture := age < -clockError
	program := s.listedBy[a.ContainerID]
	switch {
	case a.Network == "" || a.IfName == "":
		return "", "its network or interface is not recorded"
	case a.Damaged != "":
		return "", a.Damaged + " cannot be read; remove it when the container no longer exists"
	case program != "":
		return "", program + " knows the container"
	case a.lastWritten().IsZero() && hasHostEnd:
		return "", fmt.Sprintf("its host end %s exists, and its age is unknown", a.HostEnd())
	case age <= minAge.Any && !isFuture:
		return "", fmt.Sprintf("one of its files was written less than %s ago: its ADD may be in progress", minAge.Any)
	}
	inode := s.namespaceOf(a)
	isRecorded := len(a.identities()) > 0
	switch {
	case s.namespaces[inode].isUsed:
		return "", fmt.Sprintf("a process uses its namespace net:[%d]", inode)
	case a.isUnpinned:
		return "", "a process uses its namespace, which has lost its path"
	case inode != 0 && isFuture:
		return "", "its namespace exists, and the date of one of its files is in the future"
	case inode != 0 && s.start.Sub(a.attachedAt()) <= minAge.Pinned:
		return "", fmt.Sprintf("its namespace exists, and its ADD ended less than %s ago: its pod may be starting",
			minAge.Pinned)
	case s.isAuthoritative(a.ContainerID) && (inode != 0 || isRecorded && !isFuture):
		return noRuntime, ""
	case inode != 0:
		return "", "its namespace exists, and no runtime that would know the container answers"
	case hasHostEnd:
		return "", fmt.Sprintf("its host end %s exists, so its namespace exists", a.HostEnd())
	case isRecorded:
		return s.classifyRecorded(a)
	case isFuture && !a.isOfEarlierBoot():
		return "", "the date of one of its files is in the future, and its namespace is not recorded"
	}
	return s.classifyUnrecorded(a)
}

// isOfEarlierBoot reports whether the attachment has a lease from an earlier boot.
func (a *Attachment) isOfEarlierBoot() bool {
	return slices.ContainsFunc(a.Holdings, func(h cni.Holding) bool { return h.IsOfEarlierBoot })
}

// classifyRecorded decides by the recorded identity of the namespace, as host-local does before it reclaims an address.
func (s *Survey) classifyRecorded(a *Attachment) (garbage, kept string) {
	isGone, err := s.goneTest()
	switch {
	case err != nil:
		return "", "it is unknown whether its namespace exists: " + err.Error()
	case slices.ContainsFunc(a.identities(), func(id ns.Identity) bool { return !isGone(id) }):
		return "", "its namespace exists"
	}
	return "its network namespace no longer exists", ""
}

// classifyUnrecorded decides about an attachment whose namespace is unknown: its path points to no namespace, no
// namespace has its addresses, and no plugin recorded one, for example because reference plugins created the
// attachment. The container may have changed its addresses, so any namespace may be its own. That is impossible if the
// interface had a host end: the host end no longer exists here, and it is only removed together with its peer. It is
// irrelevant for a loopback, because DEL of a loopback without a namespace removes nothing.
func (s *Survey) classifyUnrecorded(a *Attachment) (garbage, kept string) {
	if a.HostEnd() == "" && !a.isOfEarlierBoot() && !a.IsLoopback() {
		if other, reason := s.unclaimedNetns(a); other != 0 {
			return "", fmt.Sprintf("the namespace net:[%d] may be its own, because no other attachment is known to be "+
				"in it: %s", other, reason)
		}
	}
	switch {
	case s.isAuthoritative(a.ContainerID):
		return noRuntime, ""
	case a.Netns != "" && a.Orphan != "":
		return a.Orphan, ""
	case len(a.marks()) > 0 && a.Netns == "":
		return "no namespace of the node has its addresses", ""
	}
	return "", "it is unknown whether its container is live"
}

// markUnpinned clears Orphan of attachments whose namespace still exists although its path does not, because processes
// use it: the container may be live. A loopback is in the namespace of the container's other attachments. markUnpinned
// changes nothing if the namespaces cannot be read.
func markUnpinned(all []*Attachment) {
	isCandidate := func(a *Attachment) bool { return a.Orphan != "" && a.Netns != "" && a.Damaged == "" }
	if !slices.ContainsFunc(all, isCandidate) {
		return
	}
	s := &Survey{Attachments: all}
	if s.findNamespaces(nil) != nil {
		return
	}
	isUsed := map[string]bool{} // by the container's ID
	for _, a := range all {
		isUsed[a.ContainerID] = isUsed[a.ContainerID] || isCandidate(a) && s.isUsed(a)
	}
	for _, a := range all {
		if isCandidate(a) && isUsed[a.ContainerID] && (a.IsLoopback() || s.isUsed(a)) {
			a.Orphan, a.isUnpinned = "", true
		}
	}
}

// isUsed reports whether processes use the recorded namespace of an attachment or, if none is recorded, a namespace
// that has its interface, by name and MAC address.
func (s *Survey) isUsed(a *Attachment) bool {
	if len(a.identities()) > 0 {
		return s.namespaces[s.recordedNetns(a)].isUsed
	}
	m := a.macMark()
	return m.mac != "" && s.namespaces[s.contents().marks[m]].isUsed
}

// FirstWord returns the text before the first space.
func FirstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}
