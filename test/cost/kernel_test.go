package cost_test

import (
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// kernelBudgets are those of plugins for which some kernels lack a feature, by the feature.
var kernelBudgets = map[string]budget{
	"vrf": {"vrf, two families", "vrf", same(Object{"vrfname": "red"}), true, 0, nil, map[string]cost{
		"VERSION": {"", 0, 0, 0, 31},
		// Who waits for the kernel's worker, which routes IPv6 addresses, looks again at each event: 16 and 10
		// messages, 141 and 124 calls without.
		"ADD":    {"", 22, 22, 8, 190},
		"CHECK":  {"", 3, 3, 3, 84},
		"STATUS": {"", 1, 1, 0, 52},
		"GC":     {"", 0, 0, 0, 55},
		"DEL":    {"", 16, 16, 6, 170},
	}},
	"ipvlan": {"ipvlan, two families", "ipvlan", same(onUplink(dual)), false, 0, nil, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"host-local", 9, 9, 0, 251},
		"CHECK":   {"host-local", 4, 4, 1, 147},
		"STATUS":  {"host-local", 2, 2, 0, 99},
		"GC":      {"host-local", 0, 0, 0, 98},
		"DEL":     {"host-local", 2, 2, 0, 122},
	}},
	"8021q": {"vlan, two families", "vlan", ownVLAN, false, 0, nil, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"host-local", 9, 9, 0, 237},
		"CHECK":   {"host-local", 4, 4, 1, 147},
		"STATUS":  {"host-local", 2, 2, 0, 99},
		"GC":      {"host-local", 0, 0, 0, 98},
		"DEL":     {"host-local", 2, 2, 0, 122},
	}},
	"dummy": {"dummy, two families", "dummy", same(ipam(dual)), false, 0, nil, map[string]cost{
		"VERSION": {"", 0, 0, 0, 30},
		"ADD":     {"host-local", 7, 7, 0, 231},
		"CHECK":   {"host-local", 3, 3, 1, 144},
		"STATUS":  {"host-local", 1, 1, 0, 96},
		"GC":      {"host-local", 0, 0, 0, 98},
		"DEL":     {"host-local", 2, 2, 0, 122},
	}},
}

// ownVLAN has a VLAN of its own for each container.
func ownVLAN(port int) Object { return Merge(onUplink(dual), Object{"vlanId": port - 8000}) }

// On a quiet node alone: where such a kernel is in a virtual machine, a busy one takes minutes.
var _ = Describe("a call that needs a feature of the kernel", Ordered, ContinueOnFailure, Label("kernel"), func() {
	var n node
	BeforeAll(func() { n = newNode(1) })
	for feature, b := range kernelBudgets {
		It("asks of the kernel no more than its budget: "+b.name, func() {
			nstest.Need(feature)
			var faults []string
			for try := range tries {
				if faults = n.over(b, try); len(faults) == 0 {
					return
				}
			}
			Fail(strings.Join(faults, "\n"))
		})
	}
})

// over are the ways in which the calls exceed the budget, others or not.
func (n node) over(b budget, try int) (faults []string) {
	GinkgoHelper()
	for i, r := range n.measure(b, try) {
		verb, got := verbs[i], costOf(r)
		AddReportEntry(verb, got.cost.String(), ReportEntryVisibilityFailureOrVerbose)
		if what := slices.Concat(got.exceeds(b.costs[verb]), waits(r), threads(r)); len(what) > 0 {
			faults = append(faults, verb+": "+got.String()+": "+strings.Join(what, ", ")+"\n"+sent(r))
		}
	}
	return faults
}
