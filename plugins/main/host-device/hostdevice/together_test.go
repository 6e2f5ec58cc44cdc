package hostdevice

import (
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// trial is a call of one of the two plugins, ours or the reference's, on a host of its own.
type trial struct {
	*World
	run func(Call) Answer
	add Call // of container one
	net *nstest.Host
}

// newTrial returns a host whose device d0 has a default route in main and one in table 101.
func newTrial(isReference bool) *trial {
	GinkgoHelper()
	w := newWorld()
	w.SetSysctl("net/ipv6/conf/d0/accept_dad", "0")
	w.Host.IP("addr add 10.0.0.5/24 dev d0", "route add default via 10.0.0.1 dev d0",
		"route add 10.0.0.0/24 dev d0 scope link table 101", "route add default via 10.0.0.1 dev d0 table 101",
		"rule add from 10.0.0.5 lookup 101 priority 1001")
	t := &trial{World: w, run: w.Call, net: nstest.NewNetns()}
	if isReference {
		t.run = func(c Call) Answer { return w.Reference(nstest.Newest(), c) }
	}
	t.add = Call{Command: "ADD", Netns: t.net.Path, IfName: "net1", Conf: uses(Object{"cniVersion": "1.0.0"})}
	return t
}

// then runs another command for the attachment that ADD made.
func (t *trial) then(command string, added Answer) Answer {
	GinkgoHelper()
	return t.run(Attached{Host: t.net, Call: t.add, Result: added.Added()}.As(command))
}

// host returns the addresses and routes of d0 on the host, and whether it is up.
func (t *trial) host() string {
	GinkgoHelper()
	l := Show(t.Host, "d0")
	return fmt.Sprint(slices.Contains(l.Flags, "UP"), " ", strings.Contains(fmt.Sprint(l.Addrs()), "10.0.0.5"), " ",
		len(lines(t.Host, "route show table all dev d0 type unicast")))
}

// inside reports whether a command of ip(8) prints a text in the container.
func (t *trial) inside(command, text string) bool {
	GinkgoHelper()
	return strings.Contains(IP(t.net, "%s", command), text)
}

// Each entry is a fault of the reference.
var _ = DescribeTable("beside the reference, useInterfaceNetwork", Label("device-network"),
	func(theirs, ours string, run func(*trial) string) {
		Expect(run(newTrial(true))).To(Equal(theirs), "the reference")
		Expect(run(newTrial(false))).To(Equal(ours), "ours")
	},
	Entry("gives the host back what it had, so that the next pod has addresses",
		"false false 0, then 0 addresses", "true true 5, then 1 addresses", func(t *trial) string {
			Expect(t.then("DEL", t.run(t.add)).Code).To(BeZero())
			home := t.host()
			return fmt.Sprintf("%s, then %d addresses", home, len(t.run(t.add).Added().IPs))
		}),
	Entry("removes its rules from the container", "true", "false", func(t *trial) string {
		Expect(t.then("DEL", t.run(t.add)).Code).To(BeZero())
		return fmt.Sprint(t.inside("rule", "lookup 101"))
	}),
	Entry("moves the device home when IPAM fails", "[net1] true", "[] false", func(t *trial) string {
		t.add.Conf = uses(Object{"cniVersion": "1.0.0", "ipam": Object{"type": "fake"}})
		t.On("ADD", "exit 3", "one")
		Expect(t.run(t.add).Code).NotTo(BeZero())
		return fmt.Sprint(Names(t.net, ""), " ", t.inside("rule", "lookup 101"))
	}),
	Entry("passes CHECK with a route that only another table has", "false", "true", func(t *trial) string {
		IP(t.Host, "route add 10.77.0.0/16 via 10.0.0.1 dev d0 table 101")
		return fmt.Sprint(t.then("CHECK", t.run(t.add)).Code == 0)
	}),
	Entry("reports the default route only if the container gets it", "reported: true, there: false",
		"reported: false, there: false", func(t *trial) string {
			t.net.IP("link add eth0 type veth peer name eth0p", "link set eth0 up", "link set eth0p up",
				"addr add 10.244.0.9/24 dev eth0", "route add default via 10.244.0.1")
			t.add.Conf = uses()
			added := t.run(t.add).Added()
			main := `{"dst":"0.0.0.0/0","gw":"10.0.0.1","table":254}`
			return fmt.Sprintf("reported: %v, there: %v", strings.Contains(strings.Join(strings.Fields(added.Text), ""),
				main), t.inside("route show table main", "default via 10.0.0.1"))
		}),
	Entry("copies what is not plain", "[]", "[link metric peer deprecated multipath]", func(t *trial) string {
		t.Host.IP("addr add 169.254.10.2/16 scope link dev d0", "addr add 10.6.0.1/24 metric 77 dev d0",
			"addr add 10.8.0.1/24 preferred_lft 0 dev d0",
			"route add 10.34.0.0/16 nexthop via 10.0.0.1 dev d0 nexthop via 10.0.0.2 dev d0")
		IP(t.Host, "addr add 10.9.0.1 peer 10.9.0.2/32 dev d0")
		t.run(t.add).Added()
		var kept []string
		for _, form := range [][]string{{"link", "addr", "169.254.10.2"}, {"metric", "addr", "metric 77"},
			{"peer", "addr", "peer 10.9.0.2"}, {"deprecated", "addr", "deprecated"},
			{"multipath", "route", "nexthop via 10.0.0.2"}} {
			if t.inside(form[1], form[2]) {
				kept = append(kept, form[0])
			}
		}
		return fmt.Sprint(kept)
	}),
	// The format has one address of each family.
	Entry("says which addresses the result of version 0.2.0 lacks", "1 false", "1 true", func(t *trial) string {
		IP(t.Host, "addr add 10.0.0.6/24 dev d0")
		t.add.Conf = uses(Object{"cniVersion": "0.2.0"})
		answer := t.run(t.add)
		return fmt.Sprint(strings.Count(answer.Stdout, `"ip"`), " ", strings.Contains(answer.Stderr, "10.0.0.6/24"))
	}),
)

// The reference's vrf loses the copied table.
var _ = It("beside the reference, useInterfaceNetwork keeps its tables in a list with vrf",
	Label("device-network", "kernel"), func() {
		nstest.Need("vrf")
		list := List{{Plugin: "host-device", Keys: Object{"device": "d0", "useInterfaceNetwork": true}},
			{Plugin: "vrf", Keys: Object{"vrfname": "red"}}}
		for _, isReference := range []bool{true, false} {
			w := NewNode()
			addDevice(w, "d0", mac0)
			w.Host.IP("addr add 10.0.0.5/24 dev d0", "route add default via 10.0.0.1 dev d0 table 101",
				"rule add from 10.0.0.5 lookup 101 priority 1001")
			node := w
			if isReference {
				node = w.With(nstest.Newest())
			}
			pod := node.Up(NewPod("one"), list)
			Expect(IP(pod.Host, "rule")).To(ContainSubstring("lookup 101"))
			routes := IP(pod.Host, "route show table all")
			Expect(strings.Contains(routes, "default via 10.0.0.1 dev eth0 table 101")).To(Equal(!isReference))
			node.Must("DEL", pod, list)
		}
	})
