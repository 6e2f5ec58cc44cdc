// Package attach is the life of a main plugin, which creates a container's interface.
//
// The interface is one of three kinds. A pair has one end in the container and a host end on the host (bridge, ptp). A
// child has no host end: it is on a master (macvlan, ipvlan, vlan) or stands by itself (dummy, tap). A device moves
// from the host into the container (host-device has its own code for that, and uses the rest of the package).
//
// A Call is an ADD or a CHECK in progress. ADD opens one and takes its steps in a straight line: create the interface,
// start IPAM, set up the interface while IPAM runs, wait for the addresses, assign them. Each step registers the undo
// of its effect with OnFail. DEL, CHECK, GC, STATUS and List are functions, to which a plugin adds what only it does.
// For a child, ChildPlugin provides all verbs.
//
// Invariants: Of two ADDs of one attachment the second fails and changes nothing. (For a pair the kernel decides which
// is first, by the name of the interface; for a child the lock of the records does.) Addresses are released only when
// no interface answers to them any more. DEL and GC find what they delete by its owner, not by the configuration or
// prevResult; an attachment of the reference plugins has no owner, and is found as described in reference.go.
package attach

import (
	"fmt"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	upTimeout      = 5 * time.Second // for a pair to pass packets; the kernel needs a millisecond
	addressTimeout = 2 * time.Second // for an IPv6 address to become usable
	endTimeout     = time.Second     // for the kernel to delete the pair of a namespace that has ended
)

// Call is an ADD or a CHECK of a main plugin in progress.
type Call struct {
	*netplugin.Call
	Child  ChildConfig // of a plugin that creates a child
	Master rtnl.Link   // the child's master; zero if it has none

	// again is true if CreatePair found the host end of a container that was started again without a DEL.
	again bool

	ipam   *ipam.Client
	adding *ipam.Delegate // the IPAM plugin's ADD in progress; nil before StartIPAM and after IPAMResult
}

// Open opens the sockets until the call and its roll-back have ended. It returns an error if the IPAM plugin that the
// configuration names does not exist.
func Open(req *skel.Request) (*Call, error) {
	client := &ipam.Client{Req: req}
	if req.IPAM != "" {
		if err := client.Find(); err != nil {
			return nil, err
		}
	}
	c := &Call{Call: netplugin.OpenHost(req), ipam: client}
	return c, c.OpenCont()
}

// Target returns the container's interface for iface.Configure and iface.Verify.
func (c *Call) Target() iface.Target {
	return iface.Target{NS: c.Req.NS, Conn: c.Cont, Name: c.Req.IfName, Index: c.ContEnd.Index, EnableDAD: c.Child.DAD}
}

// Interfaces returns the links as a result lists them: the host end, if there is one, and the container's interface.
func (c *Call) Interfaces() []cni.Interface {
	cont := iface.Describe(c.ContEnd)
	cont.Sandbox = c.Req.Netns
	if c.HostEnd.Index == 0 {
		return []cni.Interface{cont}
	}
	return []cni.Interface{iface.Describe(c.HostEnd), cont}
}

// RefuseTakenName returns code 100 if the container already has an interface with the name in CNI_IFNAME.
func (c *Call) RefuseTakenName() error {
	_, err := c.Cont.Link(c.Req.IfName)
	if err == nil {
		return c.Req.Exists(fmt.Sprintf("interface %q: exists already in the container", c.Req.IfName))
	}
	return netplugin.IgnoreNoLink(err)
}

// Tolerate turns the error of an optional step into a warning. It returns a transient error unchanged, because the step
// may succeed a moment later.
func (c *Call) Tolerate(err error) error {
	if err == nil || cni.Transient(err) {
		return err
	}
	c.Req.Warn("%v", err)
	return nil
}
