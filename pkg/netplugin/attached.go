package netplugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// EndingAlias is the alias of a container's interface from which DEL has removed the addresses.
const EndingAlias = "ending"

// Reasons why an attachment's rules are not restored.
var (
	ErrEnding   = errors.New("its DEL has begun")
	ErrNoRecord = errors.New("it has no record: DEL removed it, it was lost, or the reference plugin was used")
	ErrStale    = errors.New("its record is for another namespace or has other addresses")
)

// Restorable returns nil if the rules of an attachment's record may be restored, and otherwise the reason. isEnding
// means that a DEL has begun, and isSame that prevResult has the addresses of the record.
func Restorable(hasRecord, isEnding, isSame bool) error {
	switch {
	case !hasRecord:
		return ErrNoRecord
	case isEnding:
		return ErrEnding
	case !isSame:
		return ErrStale
	}
	return nil
}

// VerifyAttached returns nil if the container's interface exists and has the addresses of prevResult. Otherwise it
// returns the reason why nothing may be restored for the attachment. An interface without addresses is also accepted if
// prevResult has its MAC address, because gVisor moves the addresses into its own network stack. The DEL of a pair may
// also remove the addresses, but sets EndingAlias first. If the interface cannot be read, VerifyAttached returns that
// error, because restored rules must not outlive the container.
func VerifyAttached(req *skel.Request) error {
	n, err := ns.Open(req.Netns)
	if err != nil {
		return err
	}
	defer n.Close()
	cont, err := rtnl.Dial(n)
	if err != nil {
		return err
	}
	defer cont.Close()
	end, err := cont.Link(req.IfName)
	if err != nil {
		return fmt.Errorf("interface %q: %w", req.IfName, err)
	}
	addrs, err := cont.Addrs(end.Index)
	if err != nil {
		return err
	}
	i, _ := req.PrevResult.ContainerInterface(req.IfName)
	isSame := i.MAC != "" && strings.EqualFold(i.MAC, end.MAC.String())
	isAssigned := func(a rtnl.Addr) bool { // the kernel itself adds an IPv6 link-local address
		return a.Prefix.Addr().Is4() || !a.Prefix.Addr().IsLinkLocalUnicast()
	}
	if !slices.ContainsFunc(addrs, isAssigned) && isSame && end.Alias != EndingAlias {
		return nil
	}
	for _, ip := range req.PrevResult.ContainerIPs(req.IfName) {
		isLive := func(a rtnl.Addr) bool { return a.Prefix.Addr() == ip.Address.Addr() }
		switch {
		case slices.ContainsFunc(addrs, isLive):
		case end.Alias == EndingAlias:
			return ErrEnding
		default:
			return fmt.Errorf("interface %q: does not have the address %s", req.IfName, ip.Address.Addr())
		}
	}
	return nil
}

const (
	maxReads = 16          // number of namespaces that Attached reads simultaneously
	readTime = time.Second // for a namespace, because a container can disturb or slow down the reading
)

// Attached reports, by mark, whether VerifyAttached succeeds for the requests with these marks. It omits requests whose
// namespace cannot be read in time. The caller must hold no lock, because a container can delay the call.
func Attached(all []*skel.Request, marks []string) map[string]bool {
	return attached(all, marks, VerifyAttached)
}

func attached(all []*skel.Request, marks []string, verify func(*skel.Request) error) map[string]bool {
	var lock sync.Mutex
	var reads sync.WaitGroup
	found, slots := map[string]bool{}, make(chan struct{}, maxReads)
	for _, req := range all {
		mark := req.Mark()
		if !slices.Contains(marks, mark) {
			continue
		}
		slots <- struct{}{}
		reads.Go(func() {
			result := make(chan error, 1)
			go func() { result <- verify(req) }()
			select {
			case err := <-result:
				lock.Lock()
				found[mark] = err == nil
				lock.Unlock()
			case <-time.After(readTime):
			}
			<-slots
		})
	}
	reads.Wait()
	return found
}

// NotRestored returns the error of a Reapply that restores nothing because of reason. It returns nil if reason is nil.
func NotRestored(what string, reason error) error {
	if reason == nil {
		return nil
	}
	return fmt.Errorf("%s: not restored: %w; restart the container", what, reason)
}
