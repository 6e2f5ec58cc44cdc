package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// Survey is what the node says at one moment of who is alive.
type Survey struct {
	Attachments []*Attachment
	Damaged     error // of files that cannot be read: what they are about is left alone
	*Runtimes
	spaces map[uint64]space // by inode: the namespaces that processes use or have mounted
	host   map[string]bool  // the host's links
	own    uint64           // the inode of the host's namespace
	// began is before anybody was asked, by the clock of files.
	began time.Time
	// inside reads namespaces, and isGone finds out which namespaces are gone. Each runs once, and only for an
	// attachment that may be garbage.
	inside func() (*inside, error)
	isGone func() (func(ns.Identity) bool, error)
}

// space is a network namespace.
type space struct {
	path   string // path to the namespace
	isUsed bool   // a process is in it or has it open
}

// inside is what was read in the namespaces that containers may use.
type inside struct {
	has    map[mark]uint64     // inode of the namespace that has the mark; 0: not found
	active map[uint64]bool     // namespaces that processes use and in which a link is up
	owners map[uint64][]string // IDs of the containers that are known to be in each namespace
}

// mark identifies an attachment in a namespace: the interface with an address or, if no address is known, with a MAC
// address.
type mark struct {
	link string
	addr netip.Addr
	mac  string
}

// Survey asks the runtimes and the kernel, and lists the attachments last, because no earlier answer would have an
// attachment that was made since then. With an error it returns no Survey, because attachments that could not be read
// must be left alone. The Survey also looks for the marks of former attachments.
func (n Node) Survey(ctx context.Context, former ...*Attachment) (s *Survey, err error) {
	s = &Survey{host: map[string]bool{}, isGone: sync.OnceValues(ns.Gone)}
	s.inside = sync.OnceValues(func() (*inside, error) { return s.lookInside(former) })
	var now unix.Timespec
	var own unix.Stat_t
	err = errors.Join(unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now), unix.Stat("/proc/self/ns/net", &own))
	if err != nil {
		return nil, err
	}
	s.began, s.own = time.Unix(now.Unix()), own.Ino
	s.Runtimes = n.Runtimes(ctx)
	if s.spaces, err = spaces(); err != nil {
		return nil, err
	}
	host := rtnl.Host()
	defer host.Close()
	links, err := host.Briefly()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		s.host[l.Name] = true
	}
	if s.Attachments, s.Damaged, err = n.Read(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Blind says that containers' processes cannot be seen from here: we are in a PID namespace of our own. A node may have
// one (kind, LXC). Then an ADD ran in it, or a container's process is in it.
func (s *Survey) Blind() error {
	var here unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &here); err != nil {
		return err
	}
	isOf := func(a *Attachment) bool {
		inode, err := s.namespaceOf(a)
		return err == nil && s.spaces[inode].isUsed && inode != s.own ||
			slices.ContainsFunc(a.Holdings, func(h cni.Holding) bool { return h.Processes == here.Ino })
	}
	if here.Ino == ns.InitialPIDs || len(s.Attachments) == 0 || slices.ContainsFunc(s.Attachments, isOf) {
		return nil
	}
	return fmt.Errorf("the PID namespace pid:[%d] of this process does not show the processes of containers: run it "+
		"in that of the node (hostPID: true, podman run --pid host, nsenter --target 1 --pid)", here.Ino)
}

// spaces returns all namespaces that processes are in, have open or have mounted.
func spaces() (found map[uint64]space, err error) {
	found = map[uint64]space{}
	for use, failed := range ns.Uses("/proc", true) {
		if err = cmp.Or(err, failed); failed != nil {
			continue
		}
		if known := found[use.Inode]; known.path == "" || !use.IsMount {
			found[use.Inode] = space{use.Path, known.isUsed || !use.IsMount}
		}
	}
	return found, err
}

// lookInside reads all namespaces but the host's and those of unprivileged users. No runtime attaches a namespace that
// an unprivileged user made, and a user can make thousands.
func (s *Survey) lookInside(former []*Attachment) (*inside, error) {
	in := &inside{has: map[mark]uint64{}, active: map[uint64]bool{}, owners: map[uint64][]string{}}
	for _, a := range slices.Concat(s.Attachments, former) {
		for _, m := range a.marks() {
			in.has[m] = 0
		}
	}
	for inode, at := range s.spaces {
		if err := s.look(in, inode, at); err != nil {
			return nil, err
		}
	}
	for _, a := range s.Attachments {
		inode := s.noted(a)
		for _, m := range a.marks() {
			inode = cmp.Or(inode, in.has[m])
		}
		in.owners[inode] = append(in.owners[inode], a.ContainerID)
	}
	return in, nil
}

// look notes the marks of a namespace, and whether a link is up. A used namespace to which its path no longer leads is
// treated as one with a link that is up, because the process of the path may have ended while another process uses the
// namespace.
func (s *Survey) look(in *inside, inode uint64, at space) error {
	if inode == s.own {
		return nil
	}
	netns, err := ns.Open(at.path)
	if err != nil {
		in.active[inode] = at.isUsed
		return nil
	}
	defer netns.Close()
	if id, err := netns.Identity(); err != nil || id.Inode != inode {
		in.active[inode] = at.isUsed
		return err
	}
	if netns.IsUsers() {
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
	note := func(m mark) {
		if _, isWanted := in.has[m]; isWanted {
			in.has[m] = inode
		}
	}
	for _, l := range links {
		names[l.Index] = l.Name
		in.active[inode] = in.active[inode] || at.isUsed && l.Up && l.Index != loopback
		note(mark{link: l.Name, mac: l.MAC.String()})
	}
	return errors.Join(err, c.EachAddr(func(link int, addr netip.Addr) { note(mark{link: names[link], addr: addr}) }))
}

func (a *Attachment) marks() (marks []mark) {
	for _, text := range a.Addresses() {
		if addr, err := netip.ParseAddr(text); err == nil {
			marks = append(marks, mark{link: a.IfName, addr: addr})
		}
	}
	if i, _ := a.Result().ContainerInterface(a.IfName); marks == nil && i.MAC != "" {
		marks = append(marks, mark{link: a.IfName, mac: strings.ToLower(i.MAC)})
	}
	return marks
}

// identities returns the identities of the container's namespace that plugins wrote down in this boot.
func (a *Attachment) identities() (ids []ns.Identity) {
	for _, h := range a.Holdings {
		if id := (ns.Identity{Inode: h.NetnsInode, Cookie: h.NetnsCookie}); id.Inode != 0 && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// noted returns the inode of the live namespace to which the attachment's path or the notes of plugins lead; 0 if there
// is none. A namespace that processes use comes first.
func (s *Survey) noted(a *Attachment) (inode uint64) {
	if netns, err := ns.Open(a.Netns); err == nil {
		defer netns.Close()
		if id, err := netns.Identity(); err == nil {
			inode = id.Inode
		}
	}
	for _, id := range a.identities() {
		if !s.spaces[inode].isUsed && s.isThere(id) {
			inode = id.Inode
		}
	}
	return inode
}

// isThere reports whether the survey has the namespace. It is true in doubt.
func (s *Survey) isThere(id ns.Identity) bool {
	at, isFound := s.spaces[id.Inode]
	if !isFound {
		return false
	}
	netns, err := ns.Open(at.path)
	if err != nil {
		return true
	}
	defer netns.Close()
	now, err := netns.Identity()
	return err != nil || now.Inode != id.Inode || now.Cookie == 0 || id.Cookie == 0 || now.Cookie == id.Cookie
}

// namespaceOf returns the inode of the live namespace that noted returns or that has a mark of the attachment; 0 if
// there is none.
func (s *Survey) namespaceOf(a *Attachment) (inode uint64, err error) {
	if inode = s.noted(a); inode != 0 {
		return inode, nil
	}
	in, err := s.inside()
	if err != nil {
		return 0, err
	}
	for _, m := range a.marks() {
		inode = cmp.Or(inode, in.has[m])
	}
	return inode, nil
}

// stranger returns the inode of a namespace that may be the attachment's although nothing says so: processes use it, a
// link in it is up, and no other container is known to be in it. It returns 0 if there is none.
func (s *Survey) stranger(a *Attachment) (uint64, error) {
	in, err := s.inside()
	if err != nil {
		return 0, err
	}
	isOthers := func(id string) bool { return id != a.ContainerID }
	for inode, isActive := range in.active {
		if isActive && !slices.ContainsFunc(in.owners[inode], isOthers) {
			return inode, nil
		}
	}
	return 0, nil
}

// youngest is when something of the attachment was written last.
func (a *Attachment) youngest() (t time.Time) {
	t = a.Written
	for _, h := range a.Holdings {
		if h.Since.After(t) {
			t = h.Since
		}
	}
	return t
}

const noRuntime = "no runtime knows its container, and no process uses its namespace"

// Judge says why an attachment is garbage, or else why it is kept. What a runtime remembers in libcni's cache, and a
// namespace that is mounted, prove nothing: both may outlive the container. Nor does a path that is gone.
func (s *Survey) Judge(a *Attachment, older time.Duration) (garbage, kept string) {
	isThere := s.host[FirstWord(a.HostEnd())]
	age := s.began.Sub(a.youngest())
	knows := s.known[a.ContainerID]
	switch {
	case a.Network == "" || a.IfName == "":
		return "", "its network or interface is not written down"
	case a.Damaged != "":
		return "", a.Damaged + " cannot be read: remove it when the container is gone"
	case knows != "":
		return "", knows + " knows the container"
	case a.youngest().IsZero() && isThere:
		return "", fmt.Sprintf("its host end %s is there, and nothing says since when", a.HostEnd())
	case age <= older:
		return "", fmt.Sprintf("something of it was written less than %s ago: its ADD may be under way", older)
	}
	inode, err := s.namespaceOf(a)
	isNoted := len(a.identities()) > 0
	switch {
	case err != nil:
		return "", "its namespace cannot be looked for: " + err.Error()
	case s.spaces[inode].isUsed:
		return "", fmt.Sprintf("a process uses its namespace net:[%d]", inode)
	case s.WouldKnow(a.ContainerID) && (inode != 0 || isNoted):
		return noRuntime, ""
	case inode != 0:
		return "", "its namespace lives, and no runtime answers that would know the container"
	case isThere:
		return "", fmt.Sprintf("its host end %s is there, so its namespace lives", a.HostEnd())
	case isNoted:
		return s.judgeNoted(a)
	}
	return s.judgeUnnoted(a)
}

// judgeNoted judges an attachment by the identity of its namespace, as host-local does before it reclaims an address.
func (s *Survey) judgeNoted(a *Attachment) (garbage, kept string) {
	isGone, err := s.isGone()
	switch {
	case err != nil:
		return "", "it is not certain that its namespace is gone: " + err.Error()
	case slices.ContainsFunc(a.identities(), func(id ns.Identity) bool { return !isGone(id) }):
		return "", "its namespace lives"
	}
	return "nothing has its network namespace any more", ""
}

// judgeUnnoted judges an attachment whose path and addresses are in no namespace, and whose namespace no plugin wrote
// down, such as the reference plugins. The container may have changed its addresses, so another namespace may be its.
// This does not matter if the interface had a host end, because both ends of a pair end together.
func (s *Survey) judgeUnnoted(a *Attachment) (garbage, kept string) {
	if a.HostEnd() == "" && !slices.ContainsFunc(a.Holdings, func(h cni.Holding) bool { return h.IsOfEarlierBoot }) {
		other, err := s.stranger(a)
		switch {
		case err != nil:
			return "", "its namespace cannot be looked for: " + err.Error()
		case other != 0:
			return "", fmt.Sprintf("the namespace net:[%d] may be its: processes use it, a link in it is up, and no "+
				"other attachment is known to be in it", other)
		}
	}
	switch {
	case s.WouldKnow(a.ContainerID):
		return noRuntime, ""
	case a.Netns != "" && a.Orphan != "":
		return a.Orphan, ""
	case len(a.marks()) > 0 && a.Netns == "":
		return "no namespace of the node has its addresses", ""
	}
	return "", "nothing tells whether its container lives"
}

// FirstWord is the beginning of a text, up to a blank.
func FirstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}
