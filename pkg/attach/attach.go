// Package attach implements the verbs of main plugins, which create a container's interface.
//
// The interface is one of three kinds. A pair has one end in the container and a host end on the host (bridge, ptp). A
// child has no host end: it is on a master (macvlan, ipvlan, vlan) or has no master (dummy, tap). A device moves from
// the host into the container (host-device has its own code for that, and uses the rest of the package).
//
// A Call is an ADD, a CHECK or a Reapply in progress. ADD opens one, creates the interface, sets it up, and assigns the
// addresses of the IPAM plugin. For a pair, the IPAM plugin runs while the pair is set up. For a child or a device, it
// runs when the interface is up. Each step registers the undo of its effect with OnFail. The other verbs are functions,
// to which a plugin passes its own steps. For a child, ChildPlugin provides all verbs.
//
// Invariants: A second ADD of an attachment fails and changes nothing. For a pair, the kernel decides which of two ADDs
// is the first, because it accepts an interface name once; for a child, the lock of the records decides. Addresses are
// released only when no interface answers to them any more. DEL and GC identify what they delete by its owner, not by
// the configuration or prevResult. Interfaces of the reference plugins have no owner's mark (reference.go).
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
	upTimeout      = 5 * time.Second // wait until a pair passes packets; usually a millisecond
	addressTimeout = 2 * time.Second // wait until an IPv6 address is usable
	endTimeout     = time.Second     // wait until the kernel has deleted the pair of a namespace that has ended
)

// Call is an ADD, a CHECK or a Reapply of a main plugin in progress.
type Call struct {
	*netplugin.Call
	Child  ChildConfig // zero if the plugin does not create a child
	Master rtnl.Link   // the child's master; zero if it has none

	// isRestarted is true if CreatePair could not use the first host name. Either the container was started again
	// without a DEL, and may have masquerade rules of its earlier pair, or another program's link has the name.
	isRestarted bool

	ipam    *ipam.Client
	ipamAdd *ipam.Delegate // the IPAM plugin's ADD in progress; nil before StartIPAM and after IPAMResult
}

// Open opens the sockets to the host and the container, which stay open until the call and its roll-back have ended. It
// returns an error if the configured IPAM plugin does not exist.
func Open(req *skel.Request) (*Call, error) {
	client := &ipam.Client{Req: req}
	if req.IPAM != "" {
		if err := client.FindPlugin(); err != nil {
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

// RefuseExisting returns code 100 if the container already has an interface with the name in CNI_IFNAME.
func (c *Call) RefuseExisting() error {
	_, err := c.Cont.Link(c.Req.IfName)
	if err == nil {
		return c.Req.Exists(fmt.Sprintf("interface %q: exists already in the container", c.Req.IfName))
	}
	return netplugin.IgnoreNoLink(err)
}

// Tolerate prints the error of an optional step as a warning and returns nil. It returns a transient error unchanged,
// because the step may succeed a moment later.
func (c *Call) Tolerate(err error) error {
	if err == nil || cni.Transient(err) {
		return err
	}
	c.Req.Warn("%v", err)
	return nil
}
