package iface

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// A Search's Master where there is no bridge: the host end is a port of
// nothing, or only marked ones are looked for.
const (
	NoMaster      = 0
	UnknownMaster = -1
)

// Search looks for an attachment's pair when it is to be removed or checked,
// with whatever is known of it: any part but Host may be missing.
type Search struct {
	Attachment cni.Attachment
	Host       *rtnl.Conn
	NS         *ns.NS      // the container's namespace; nil when it is gone
	Prev       *cni.Result // what ADD returned; nil when it is not known
	// Master is the index of the bridge that an unmarked host end must be a
	// port of, NoMaster or UnknownMaster. Marked ones are found anywhere.
	Master int
}

// Delete deletes the attachment's pair: ours by its mark, one that other
// software made by what the namespace or the result say. What belongs to
// somebody else by now stays. gone is false when the pair was found and is there
// still, and when we are too short of memory or descriptors to look for it.
func (s Search) Delete() (gone bool, err error) {
	l, err := FindHostEnd(s.Host, s.Attachment)
	if errors.Is(err, rtnl.ErrNoLink) && s.Master != UnknownMaster {
		return s.deleteUnmarked()
	}
	return remove(s.Host, l, err)
}

// deleteUnmarked deletes a pair that other software made.
func (s Search) deleteUnmarked() (gone bool, err error) {
	if s.NS != nil {
		cont, err := rtnl.Dial(s.NS)
		if err != nil {
			return Gone(err), err
		}
		defer cont.Close()
		// From the inside: whoever is in the container can choose names, indexes
		// and addresses, and must not be able to point at another's host end.
		end, err := s.containerEnd(cont)
		if !errors.Is(err, rtnl.ErrNoLink) {
			return remove(cont, end, err)
		}
	}
	l, err := s.byResult()
	return remove(s.Host, l, err)
}

// containerEnd finds the interface in the container, if it is what the result
// says and the end of an unmarked pair.
func (s Search) containerEnd(cont *rtnl.Conn) (rtnl.Link, error) {
	end, err := cont.Link(s.Attachment.IfName)
	if err != nil {
		return end, err
	}
	if s.Prev != nil {
		i, ok := s.Prev.ContainerInterface(s.Attachment.IfName)
		if ok && i.MAC != "" && !sameMAC(i.MAC, end.MAC) {
			return end, rtnl.ErrNoLink // the namespace is another container's by now
		}
	}
	_, err = s.PeerOf(end)
	return end, err
}

func remove(conn *rtnl.Conn, l rtnl.Link, err error) (gone bool, _ error) {
	if errors.Is(err, rtnl.ErrNoLink) {
		return true, nil
	}
	if err != nil {
		return Gone(err), err
	}
	err = conn.DelLink(l.Index)
	return err == nil, err
}

// Gone says of a pair that could not be looked for whether DEL may give its
// addresses back: not where a moment later it may be found, answering to them.
func Gone(err error) bool { return !cni.Transient(err) }

// PeerOf finds the unmarked host end of a container's interface.
func (s Search) PeerOf(end rtnl.Link) (rtnl.Link, error) {
	if end.Kind != "veth" || end.Peer == 0 {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	l, err := s.Host.LinkByIndex(end.Peer)
	if err != nil {
		return l, err
	}
	if l.Peer != end.Index || !s.unmarked(l) {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	return l, nil
}

// byResult finds the host end that the result names, by name and MAC address:
// without the namespace, or its interface, there is no other trace of it.
func (s Search) byResult() (rtnl.Link, error) {
	if s.Prev == nil {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	for _, i := range s.Prev.Interfaces {
		if i.Sandbox != "" || i.MAC == "" {
			continue
		}
		l, err := s.Host.Link(i.Name)
		if errors.Is(err, rtnl.ErrNoLink) {
			continue
		}
		if err != nil || sameMAC(i.MAC, l.MAC) && s.unmarked(l) {
			return l, err
		}
	}
	return rtnl.Link{}, rtnl.ErrNoLink
}

// unmarked tells a pair of other software. One of ours that has no mark yet is
// in a group.
func (s Search) unmarked(l rtnl.Link) bool {
	return l.Kind == "veth" && l.Alias == "" && l.Group == 0 && l.Master == s.Master
}

// Collect deletes the pairs of the network's attachments that are not valid.
func Collect(host *rtnl.Conn, valid cni.Set) error {
	links, err := HostEnds(host, valid.Network())
	if err != nil {
		return err
	}
	keep := map[string]bool{} // for those that have no mark yet
	for _, a := range valid.All() {
		for try := range nameTries {
			keep[hostName(a, try)] = true
		}
	}
	var dead []rtnl.Link
	for _, l := range links {
		if valid.Garbage(l.Alias) || l.Alias == "" && !keep[l.Name] {
			dead = append(dead, l)
		}
	}
	return deleteAll(host, dead)
}

// deleters is how many links deleteAll deletes at a time, each by a socket of its
// own: the kernel answers one after its grace period, which others share.
const deleters = 16

func deleteAll(host *rtnl.Conn, links []rtnl.Link) error {
	next := make(chan rtnl.Link, len(links))
	for _, l := range links {
		next <- l
	}
	close(next)
	errs := make([]error, min(deleters, len(links)))
	var wait sync.WaitGroup
	for i := range errs {
		conn := host
		if i > 0 { // opened here: another thread may be in another namespace
			var err error
			if conn, err = rtnl.Dial(nil); err != nil {
				break // fewer will do
			}
			defer conn.Close()
		}
		wait.Go(func() {
			for l := range next {
				if err := conn.DelLink(l.Index); err != nil {
					errs[i] = errors.Join(errs[i], fmt.Errorf("%s: %w", l.Name, err))
				}
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

func sameMAC(text string, mac net.HardwareAddr) bool {
	return strings.EqualFold(text, mac.String())
}
