package sbr

import (
	"fmt"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// wireConfig is the configuration as written.
type wireConfig struct {
	skel.LogKey

	Table          *int64   `json:"table" help:"rules lead to this table, and no route changes (a new table for each address)" schema:"min=1 max=4294967295"`
	Gateways       []string `json:"gateways" help:"gateways of the default routes, one IPv4 and one IPv6 at most; win over the result's" each:"format=address"`
	AddSourceHints bool     `json:"addSourceHints" help:"keep the subnets in the main table, with the address as source"`
}

// config is the configuration with every value checked.
type config struct {
	Table       uint32              // 0 = new tables
	Gateways    map[bool]netip.Addr // by "is IPv4"; those of the configuration alone
	SourceHints bool
}

// parseConfig refuses bad values with code 7.
func parseConfig(_ *skel.Request, w wireConfig, problems *cni.Problems) config {
	c := config{SourceHints: w.AddSourceHints, Gateways: map[bool]netip.Addr{},
		Table: cni.ParseTable(problems, "table", w.Table)}
	for i, text := range w.Gateways {
		key := fmt.Sprintf("gateways[%d]", i)
		gw, err := cni.ParseAddr(key, text)
		problems.Add(err)
		switch other := c.Gateways[gw.Is4()]; {
		case !gw.IsValid():
		case gw.IsMulticast() || gw.IsLoopback():
			problems.Add(cni.Refuse(key, text, "is no gateway"))
		case other.IsValid():
			problems.Add(cni.Refuse(key, text, fmt.Sprintf("is the second gateway of its family, after %s", other)).
				Suggest("name one gateway of each family"))
		default:
			c.Gateways[gw.Is4()] = gw
		}
	}
	return c
}
