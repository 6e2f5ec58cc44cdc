package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	used map[uint64]bool   // by inode: a process is in the namespace or has it open
	has  map[string]uint64 // "eth0 10.88.0.2" or "eth0 MAC" -> the namespace that has it
	host map[string]bool   // the host's links
	own  uint64            // the inode of the host's namespace
	// began is before anybody was asked, by the clock of files.
	began time.Time
}

// Survey asks runtimes and the kernel, and lists the attachments at last: who answered before an attachment was made
// knows nothing of it. One that could not be read has to be left alone, so there is no survey beside an error.
func (n Node) Survey(ctx context.Context) (s *Survey, err error) {
	s = &Survey{used: map[uint64]bool{}, has: map[string]uint64{}, host: map[string]bool{}}
	var now unix.Timespec
	var own unix.Stat_t
	err = errors.Join(unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now), unix.Stat("/proc/self/ns/net", &own))
	if err != nil {
		return nil, err
	}
	s.began, s.own = time.Unix(now.Unix()), own.Ino
	s.Runtimes = n.Runtimes(ctx)
	paths, err := s.namespaces()
	if err != nil {
		return nil, err
	}
	for inode, path := range paths {
		if err := s.look(inode, path); err != nil {
			return nil, err
		}
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
		inode, _ := s.namespaceOf(a)
		return s.used[inode] && inode != s.own ||
			slices.ContainsFunc(a.Holdings, func(h cni.Holding) bool { return h.Processes == here.Ino })
	}
	if here.Ino == ns.InitialPIDs || len(s.Attachments) == 0 || slices.ContainsFunc(s.Attachments, isOf) {
		return nil
	}
	return fmt.Errorf("the PID namespace pid:[%d] of this process does not show the processes of containers: run it "+
		"in that of the node (hostPID: true, podman run --pid host, nsenter --target 1 --pid)", here.Ino)
}

// namespaces finds all that processes are in, have open or have mounted, and a path for each.
func (s *Survey) namespaces() (paths map[uint64]string, err error) {
	paths = map[uint64]string{}
	for use, failed := range ns.Uses("/proc", true) {
		if failed != nil {
			err = cmp.Or(err, failed)
			continue
		}
		if !use.IsMount {
			paths[use.Inode], s.used[use.Inode] = use.Path, true
		} else if paths[use.Inode] == "" {
			paths[use.Inode] = use.Path
		}
	}
	return paths, err
}

// look notes the addresses of a namespace. One that is gone meanwhile has none.
func (s *Survey) look(inode uint64, path string) error {
	netns, err := ns.Open(path)
	if err != nil {
		return nil //nolint:nilerr // the process ended; a mount of the same is found by its own path the next time
	}
	defer netns.Close()
	if is, err := netns.IsCurrent(); is || err != nil {
		return err
	}
	c, err := rtnl.Dial(netns)
	if err != nil {
		return err
	}
	defer c.Close()
	links, err := c.Links()
	for _, l := range links {
		s.has[l.Name+" "+l.MAC.String()] = inode
		addrs, _ := c.Addrs(l.Index)
		for _, a := range addrs {
			s.has[l.Name+" "+a.Prefix.Addr().String()] = inode
		}
	}
	return err
}

// namespaceOf is the live namespace that an attachment is in, by its path or by what it has there; 0 for none. isKnown
// says that there was something to look for.
func (s *Survey) namespaceOf(a *Attachment) (inode uint64, isKnown bool) {
	if netns, err := ns.Open(a.Netns); err == nil {
		defer netns.Close()
		if id, err := netns.Identity(); err == nil {
			return id.Inode, true
		}
	}
	marks := a.Addresses()
	if len(marks) == 0 {
		i, _ := a.Result().ContainerInterface(a.IfName)
		marks = append(marks, strings.ToLower(i.MAC))
	}
	for _, mark := range marks {
		if mark != "" && a.IfName != "" {
			inode, isKnown = cmp.Or(inode, s.has[a.IfName+" "+mark]), true
		}
	}
	return inode, isKnown
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

// Judge says why an attachment is garbage, or else why it is kept. What a runtime remembers in libcni's cache, and a
// namespace that is mounted, prove nothing: both may outlive the container.
func (s *Survey) Judge(a *Attachment, older time.Duration) (garbage, kept string) {
	inode, isKnown := s.namespaceOf(a)
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
	case s.used[inode]:
		return "", fmt.Sprintf("a process uses its namespace net:[%d]", inode)
	case s.WouldKnow(a.ContainerID):
		return "no runtime knows its container, and no process uses its namespace", ""
	case inode != 0:
		return "", "its namespace lives, and no runtime answers that would know the container"
	case isThere:
		return "", fmt.Sprintf("its host end %s is there, so its namespace lives", a.HostEnd())
	case a.Netns != "" && a.Orphan != "":
		return a.Orphan, ""
	case isKnown && a.Netns == "":
		return "no namespace of the node has its addresses", ""
	}
	return "", "nothing tells whether its container lives"
}

// FirstWord is the beginning of a text, up to a blank.
func FirstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}
