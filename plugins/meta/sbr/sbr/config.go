package sbr

import (
	"fmt"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

type wireConfig struct {
	skel.LogKey

	Table          *int64   `json:"table" help:"table that the rules use; routes stay as they are (a new table for each address)" schema:"min=1 max=4294967295"`
	Gateways       []string `json:"gateways" help:"gateways of the default routes, at most one per family; override those of the result" each:"format=address"`
	AddSourceHints bool     `json:"addSourceHints" help:"keep the subnet routes in the main table, with the address as their source"`
}

type config struct {
	Table       uint32              // 0: a new table for each address
	Gateways    map[bool]netip.Addr // configured gateways; the key is true for IPv4
	SourceHints bool
}

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
			problems.Add(cni.Refuse(key, text, "is not a gateway address"))
		case other.IsValid():
			family := map[bool]string{true: "IPv4", false: "IPv6"}[gw.Is4()]
			problems.Add(cni.Refuse(key, text, fmt.Sprintf("is one of multiple %s addresses, after %s", family, other)).
				Suggest("name one gateway of each family"))
		default:
			c.Gateways[gw.Is4()] = gw
		}
	}
	return c
}
