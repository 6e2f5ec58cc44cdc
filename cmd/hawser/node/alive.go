package node

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// Survey is what the node says at one moment of who is alive.
type Survey struct {
	Attachments []*Attachment
	*Runtimes
	used map[string]bool   // "net:[4026531840]": a process is in it or has it open
	has  map[string]string // "eth0 10.88.0.2" or "eth0 MAC" -> the namespace that has it
	host map[string]bool   // the host's links
}

// Survey asks runtimes and the kernel. An attachment that could not be read has to be left alone, so there is no survey
// beside an error.
func (n Node) Survey(ctx context.Context) (s *Survey, err error) {
	s = &Survey{used: map[string]bool{}, has: map[string]string{}, host: map[string]bool{}}
	if s.Attachments, err = n.Attachments(ctx); err != nil {
		return nil, err
	}
	s.Runtimes = n.Runtimes(ctx)
	host := rtnl.Host()
	defer host.Close()
	links, err := host.Briefly()
	for _, l := range links {
		s.host[l.Name] = true
	}
	if err != nil {
		return nil, err
	}
	for name, path := range s.namespaces() {
		if err := s.look(name, path); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// namespaces finds all that processes are in, have open or have mounted, and a path for each.
func (s *Survey) namespaces() map[string]string {
	paths := map[string]string{}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	mounts := map[string]bool{}
	for _, process := range processes {
		open, _ := filepath.Glob(process + "/fd/*")
		threads, _ := filepath.Glob(process + "/task/*/ns/net")
		for _, path := range append(open, threads...) {
			if name := netnsName(path); name != "" {
				paths[name], s.used[name] = path, true
			}
		}
		space, _ := os.Readlink(process + "/ns/mnt")
		if mounts[space] {
			continue
		}
		mounts[space] = true
		file, err := os.Open(process + "/mountinfo")
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			words := strings.Fields(lines.Text())
			if len(words) > 4 && strings.HasPrefix(words[3], "net:[") && paths[words[3]] == "" {
				paths[words[3]] = process + "/root" + words[4]
			}
		}
		_ = file.Close()
	}
	return paths
}

// netnsName is "net:[4026531840]" for a path of that namespace, and empty for a file of others. A link of /proc has
// that text for some descriptors alone. No file server is asked.
func netnsName(path string) string {
	var own, st unix.Statx_t
	for file, stat := range map[string]*unix.Statx_t{"/proc/self/ns/net": &own, path: &st} {
		if unix.Statx(unix.AT_FDCWD, file, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, stat) != nil {
			return ""
		}
	}
	if st.Dev_major != own.Dev_major || st.Dev_minor != own.Dev_minor {
		return ""
	}
	return fmt.Sprintf("net:[%d]", st.Ino)
}

// look notes the addresses of a namespace. One that is gone meanwhile has none.
func (s *Survey) look(name, path string) error {
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
	links, err := c.Briefly()
	if err != nil {
		return err
	}
	for _, l := range links {
		if full, err := c.LinkByIndex(l.Index); err == nil {
			s.has[l.Name+" "+full.MAC.String()] = name
		}
		addrs, _ := c.Addrs(l.Index)
		for _, a := range addrs {
			s.has[l.Name+" "+a.Prefix.Addr().String()] = name
		}
	}
	return nil
}

// namespaceOf is the live namespace that an attachment is in, by its path or by what it has there. isKnown says that
// there was something to look for.
func (s *Survey) namespaceOf(a *Attachment) (name string, isKnown bool) {
	if netns, err := ns.Open(a.Netns); err == nil {
		_ = netns.Close()
		return netnsName(a.Netns), true
	}
	marks := a.Addresses()
	if a.Cached != nil && len(marks) == 0 {
		if result := a.Cached.Result(); result != nil {
			i, _ := result.ContainerInterface(a.IfName)
			marks = append(marks, strings.ToLower(i.MAC))
		}
	}
	for _, mark := range marks {
		if mark != "" && a.IfName != "" {
			name, isKnown = cmp.Or(name, s.has[a.IfName+" "+mark]), true
		}
	}
	return name, isKnown
}

// youngest is when something of the attachment was written last.
func (a *Attachment) youngest() (t time.Time) {
	if a.Cached != nil {
		t = a.Cached.Since
	}
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
	name, isKnown := s.namespaceOf(a)
	isThere := s.host[firstWord(a.HostEnd())]
	age := time.Since(a.youngest())
	knows := s.Knows(a.ContainerID)
	switch {
	case a.Network == "" || a.IfName == "":
		return "", "its network or interface is not written down"
	case knows != "":
		return "", knows + " knows the container"
	case a.youngest().IsZero() && isThere:
		return "", fmt.Sprintf("its host end %s is there, and nothing says since when", a.HostEnd())
	case age < older:
		return "", fmt.Sprintf("something of it was written %s ago: its ADD may be under way", age.Round(time.Second))
	case s.used[name]:
		return "", "a process uses its namespace " + name
	case s.WouldKnow(a.ContainerID):
		return "no runtime knows its container, and no process uses its namespace", ""
	case name != "":
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

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}
