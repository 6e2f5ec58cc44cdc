// Package plugins is the list of all plugins, for programs that are several of them. A distributor
// leaves some out or adds one in a main of his own:
//
//	func main() { skel.MainOf(append(plugins.All(), flannel.Plugin().Program())) }
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
	"github.com/hawser-cni/plugins/plugins/meta/tuning/tuning"
	"github.com/hawser-cni/plugins/plugins/meta/vrf/vrf"
)

// All returns the plugins, each by the name of its program.
func All() []skel.Program {
	return []skel.Program{
		dhcp.Plugin().Program(),
		hostlocal.Plugin().Program(),
		static.Plugin().Program(),
		bridge.Plugin().Program(),
		dummy.Plugin().Program(),
		hostdevice.Plugin().Program(),
		ipvlan.Plugin().Program(),
		loopback.Plugin().Program(),
		macvlan.Plugin().Program(),
		ptp.Plugin().Program(),
		tap.Plugin().Program(),
		vlan.Plugin().Program(),
		bandwidth.Plugin().Program(),
		firewall.Plugin().Program(),
		portmap.Plugin().Program(),
		sbr.Plugin().Program(),
		tuning.Plugin().Program(),
		vrf.Plugin().Program(),
	}
}
