package plugintest

import (
	"fmt"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// IP runs ip(8) with words separated by blanks.
func IP(h *nstest.Host, format string, args ...any) string {
	ginkgo.GinkgoHelper()
	return h.Cmd("ip", strings.Fields(fmt.Sprintf(format, args...))...)
}

// Link is ip(8)'s view of a link.
type Link struct {
	Ifname, Operstate, Address, Ifalias, Master string
	Index                                       int `json:"ifindex"`
	Peer                                        int `json:"link_index"`
	MTU, Promiscuity                            int
	Flags                                       []string
	Linkinfo                                    struct {
		Kind string                           `json:"info_kind"`
		Port struct{ Hairpin, Isolated bool } `json:"info_slave_data"`
		Data struct {
			Filtering int `json:"vlan_filtering"`
		} `json:"info_data"`
	}
	AddrInfo []struct {
		Local     string
		Prefixlen int
		Tentative bool
		Scope     string
	} `json:"addr_info"`
}

// Show looks at one link.
func Show(h *nstest.Host, name string) Link {
	ginkgo.GinkgoHelper()
	var links []Link
	h.JSON(&links, "ip", "-j", "-d", "addr", "show", "dev", name)
	gomega.Expect(links).To(gomega.HaveLen(1))
	return links[0]
}

// Addrs are a link's addresses but those that the kernel gave it.
func (l Link) Addrs() []string {
	out := []string{}
	for _, a := range l.AddrInfo {
		if a.Scope == "global" || a.Prefixlen == 128 {
			out = append(out, fmt.Sprintf("%s/%d", a.Local, a.Prefixlen))
		}
	}
	return out
}

// Names lists the links of a kind, or all but lo.
func Names(h *nstest.Host, kind string) []string {
	ginkgo.GinkgoHelper()
	args := []string{"-j", "link"}
	if kind != "" {
		args = append(args, "show", "type", kind)
	}
	var links []Link
	h.JSON(&links, "ip", args...)
	out := []string{}
	for _, l := range links {
		if l.Ifname != "lo" {
			out = append(out, l.Ifname)
		}
	}
	return out
}

// Ping tells whether an address answers, which is asked once a second.
func Ping(h *nstest.Host, address string) bool {
	ginkgo.GinkgoHelper()
	seconds := fmt.Sprint(int(nstest.Patience(nstest.Hang).Seconds()))
	return h.Run(nstest.Program{Path: "ping", Args: []string{"-c1", "-w" + seconds, "-n", address}}).Exit == 0
}

// Uplink gives a host an interface, "up0", that others can be on, and returns a neighbour on its
// network, who has the gateways' addresses of [Addrs].
func Uplink(h *nstest.Host) (far *nstest.Host) {
	ginkgo.GinkgoHelper()
	far = nstest.NewNetns()
	for _, side := range []*nstest.Host{h, far} {
		side.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	}
	h.IP("link add up0 type veth peer name far0 netns "+far.Name, "link set up0 up")
	far.IP("link set far0 up", "addr add 10.1.0.1/24 dev far0", "addr add 2001:db8:1::1/64 dev far0 nodad")
	return far
}

// LinkLocal is the link-local address of a link, once it may be used.
func LinkLocal(h *nstest.Host, name string) (address string) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() string {
		for _, a := range Show(h, name).AddrInfo {
			if strings.HasPrefix(a.Local, "fe80:") && a.Prefixlen == 64 && !a.Tentative {
				address = a.Local
			}
		}
		return address
	}).ShouldNot(gomega.BeEmpty())
	return address
}
