package cost_test

import (
	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// kernelBudgets are those of plugins for which some kernels lack a feature, by the feature.
var kernelBudgets = map[string]budget{
	"vrf": {name: "vrf, two families", plugin: "vrf", conf: same(Object{"vrfname": "red"}),
		chained: true, grows: listsRules, costs: map[string]cost{
			// Who waits for the kernel's worker, which routes IPv6 addresses, looks again at each event: 16 and 10
			// messages, 141 and 124 calls without.
			"ADD":    {sends: 22, messages: 22, dumps: 8, calls: 190},
			"CHECK":  {sends: 3, messages: 3, dumps: 3, calls: 84},
			"STATUS": {sends: 1, messages: 1, calls: 52},
			"GC":     {calls: 55},
			"DEL":    {sends: 16, messages: 16, dumps: 6, calls: 170},
		}},
	"ipvlan": {name: "ipvlan, two families", plugin: "ipvlan", conf: same(onUplink(dual)), costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 9, messages: 9, calls: 251},
		"CHECK":  {programs: "host-local", sends: 4, messages: 4, dumps: 1, calls: 147},
		"STATUS": {programs: "host-local", sends: 2, messages: 2, calls: 99},
		"GC":     {programs: "host-local", calls: 98},
		"DEL":    {programs: "host-local", sends: 2, messages: 2, calls: 122},
	}},
	"8021q": {name: "vlan, two families", plugin: "vlan", conf: ownVLAN, costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 9, messages: 9, calls: 237},
		"CHECK":  {programs: "host-local", sends: 4, messages: 4, dumps: 1, calls: 147},
		"STATUS": {programs: "host-local", sends: 2, messages: 2, calls: 99},
		"GC":     {programs: "host-local", calls: 98},
		"DEL":    {programs: "host-local", sends: 2, messages: 2, calls: 122},
	}},
	"dummy": {name: "dummy, two families", plugin: "dummy", conf: same(ipam(dual)), costs: map[string]cost{
		"ADD":    {programs: "host-local", sends: 7, messages: 7, calls: 231},
		"CHECK":  {programs: "host-local", sends: 3, messages: 3, dumps: 1, calls: 144},
		"STATUS": {programs: "host-local", sends: 1, messages: 1, calls: 96},
		"GC":     {programs: "host-local", calls: 98},
		"DEL":    {programs: "host-local", sends: 2, messages: 2, calls: 122},
	}},
}

func ownVLAN(port int) Object { return Merge(onUplink(dual), Object{"vlanId": port - 8000}) }

// On a quiet node alone: where such a kernel is in a virtual machine, a busy one takes minutes.
var _ = Describe("a call that needs a feature of the kernel", Ordered, ContinueOnFailure, Label("kernel"), func() {
	var n node
	BeforeAll(func() { n = newNode(1) })
	for feature, b := range kernelBudgets {
		It("asks of the kernel no more than its budget: "+b.name, func() {
			nstest.Need(feature)
			b.isKept(func(try int) map[string]string {
				records := n.measure(b, try)
				return b.faults(records, records)
			})
		})
	}
})
