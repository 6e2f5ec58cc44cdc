// Package plugins lists all plugins except cluster-local, for programs that contain several plugins. A distributor can
// write a main function with another list (docs/install.md).
package plugins

import (
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/ipam/dhcp/dhcp"
	"github.com/hawser-cni/plugins/plugins/ipam/host-local/hostlocal"
	"github.com/hawser-cni/plugins/plugins/ipam/static/static"
	"github.com/hawser-cni/plugins/plugins/main/bridge/bridge"
	"github.com/hawser-cni/plugins/plugins/main/dummy/dummy"
	"github.com/hawser-cni/plugins/plugins/main/host-device/hostdevice"
	"github.com/hawser-cni/plugins/plugins/main/ipvlan/ipvlan"
	"github.com/hawser-cni/plugins/plugins/main/loopback/loopback"
	"github.com/hawser-cni/plugins/plugins/main/macvlan/macvlan"
	"github.com/hawser-cni/plugins/plugins/main/ptp/ptp"
	"github.com/hawser-cni/plugins/plugins/main/tap/tap"
	"github.com/hawser-cni/plugins/plugins/main/vlan/vlan"
	"github.com/hawser-cni/plugins/plugins/meta/bandwidth/bandwidth"
	"github.com/hawser-cni/plugins/plugins/meta/firewall/firewall"
	"github.com/hawser-cni/plugins/plugins/meta/portmap/portmap"
	"github.com/hawser-cni/plugins/plugins/meta/sbr/sbr"
	"github.com/hawser-cni/plugins/plugins/meta/tc-redirect-tap/tcredirecttap"
	"github.com/hawser-cni/plugins/plugins/meta/tuning/tuning"
	"github.com/hawser-cni/plugins/plugins/meta/vrf/vrf"
)

// All returns the plugins with the names of their programs.
func All() []skel.Program {
	return []skel.Program{
		skel.ProgramOf("dhcp", dhcp.Plugin),
		skel.ProgramOf("host-local", hostlocal.Plugin),
		skel.ProgramOf("static", static.Plugin),
		skel.ProgramOf("bridge", bridge.Plugin),
		skel.ProgramOf("dummy", dummy.Plugin),
		skel.ProgramOf("host-device", hostdevice.Plugin),
		skel.ProgramOf("ipvlan", ipvlan.Plugin),
		skel.ProgramOf("loopback", loopback.Plugin),
		skel.ProgramOf("macvlan", macvlan.Plugin),
		skel.ProgramOf("ptp", ptp.Plugin),
		skel.ProgramOf("tap", tap.Plugin),
		skel.ProgramOf("vlan", vlan.Plugin),
		skel.ProgramOf("bandwidth", bandwidth.Plugin),
		skel.ProgramOf("firewall", firewall.Plugin),
		skel.ProgramOf("portmap", portmap.Plugin),
		skel.ProgramOf("sbr", sbr.Plugin),
		skel.ProgramOf("tc-redirect-tap", tcredirecttap.Plugin),
		skel.ProgramOf("tuning", tuning.Plugin),
		skel.ProgramOf("vrf", vrf.Plugin),
	}
}
