package lifecycle_test

import (
	"encoding/json"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// chainedLists are lists whose plugins each have one before or behind them, by what the kernel needs.
var chainedLists = map[string]List{
	"tbf": append(Usual(""), Step{Plugin: "bandwidth", Keys: Object{"egressRate": 8000000, "egressBurst": 800000}},
		Step{Plugin: "sbr"}),
	"tap": {{Plugin: "tap", Keys: Object{"ipam": HostLocal("10.88.0.0/24", "fd00:88::/64")}}},
	"nft": {{Plugin: "ptp", Keys: Object{"ipMasq": true, "ipam": HostLocal("10.88.0.0/24", "fd00:88::/64")}},
		{Plugin: "tuning", Keys: Object{"mac": "0a:00:00:00:00:01", "mtu": 1400}}},
	"vrf": {{Plugin: "bridge", Keys: Object{"bridge": "cni0", "ipam": HostLocal("10.88.0.0/24")}},
		{Plugin: "vrf", Keys: Object{"vrfname": "red"}}},
}

var _ = Describe("a list of plugins", Label("kernel", "versions"), func() {
	for _, version := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for need, list := range chainedLists {
			It("is served in version "+version+", which each result has: "+list[0].Plugin+" and others", func() {
				nstest.Need(need)
				n, p := NewNode(), NewPod("one")
				n.Version = version
				list := list
				if version < "0.3.0" && need == "tbf" { // whose results have no interfaces: bandwidth refuses them
					list = list.Only("bridge", "portmap", "firewall", "tuning", "sbr")
				}
				n.Up(p, list)
				var result struct{ CNIVersion string }
				Expect(json.Unmarshal(p.Result, &result)).To(Succeed())
				Expect(result.CNIVersion).To(Equal(version))
				Expect(string(p.Result)).To(ContainSubstring("10.88.0.2/24"))
				if version >= "0.4.0" { // which has CHECK
					n.Must("CHECK", p, list)
				}
				n.Must("DEL", p, list)
			})
		}
	}
})
