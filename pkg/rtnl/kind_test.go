package rtnl_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("whether the kernel has a kind of links", func() {
	DescribeTable("is said without making one", func(kind, feature string, has bool) {
		if feature != "" {
			nstest.Need(feature)
		}
		h := nstest.NewHost()
		c := dial(h)
		before := h.Snapshot()
		if has {
			Expect(c.ProbeKind(kind)).To(Succeed())
		} else {
			Expect(c.ProbeKind(kind)).To(MatchError(unix.EOPNOTSUPP))
		}
		Expect(h.Snapshot()).To(Equal(before))
	},
		Entry(nil, "veth", "", true),
		Entry(nil, "bridge", "", true),
		Entry(nil, "nosuch", "", false),
		Entry(nil, "macvlan", "macvlan", true, Label("kernel")),
		Entry(nil, "ipvlan", "ipvlan", true, Label("kernel")),
		Entry(nil, "vlan", "8021q", true, Label("kernel")),
		Entry(nil, "dummy", "dummy", true, Label("kernel")),
		Entry(nil, "vrf", "vrf", true, Label("kernel")),
	)
})
