package lifecycle_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// entries is a list with this plugin in it, after a bridge where it needs an interface.
func entries(plugin string, keys Object) List {
	ipam := Object{"ipam": HostLocal("10.88.0.0/24", "fd00:88::/64")}
	bridge := Merge(Object{"bridge": "cni0", "isDefaultGateway": true}, ipam)
	switch plugin {
	case "bridge":
		return List{{Plugin: plugin, Keys: Merge(bridge, keys)}}
	case "macvlan", "ipvlan", "vlan": // IPv4 alone: the reference waits for IPv6
		return List{{Plugin: plugin, Keys: Merge(Object{"master": "up0", "ipam": HostLocal("10.88.0.0/24")}, keys)}}
	case "ptp", "host-device", "tap", "dummy":
		return List{{Plugin: plugin, Keys: Merge(ipam, keys)}}
	case "loopback":
		return List{{Plugin: plugin, Keys: keys}}
	}
	return List{{Plugin: "bridge", Keys: bridge}, {Plugin: plugin, Keys: keys}}
}

// upgrade is a list whose attachments must outlive the plugins that made them.
type upgrade struct {
	name      string
	list      List
	forward   bool               // the reference does not know what ours makes
	newest    bool               // Debian's release does not have it
	checkless []nstest.Reference // which fail CHECK of what they made themselves
	nameless  bool               // the reference's rules name nobody: GC leaves them to DEL
	needs     []string
	daemon    string // whose daemon serves dhcp: "ours", "theirs"; empty: there is none
}

func upgrades() []upgrade {
	masq := func(backend string) Object { return Object{"ipMasq": true, "ipMasqBackend": backend} }
	published := func(backend string) Object {
		return Object{"backend": backend, "runtimeConfig": Object{"portMappings": []Object{
			{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
			{"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"}}}}
	}
	tuned := Object{"sysctl": Object{"net.ipv4.conf.eth0.arp_filter": "1"}, "mac": "0a:00:00:00:00:07", "promisc": true}
	limited := Object{"ingressRate": 8000000, "ingressBurst": 800000,
		"egressRate": 16000000, "egressBurst": 1600000}
	lent := Object{"isDefaultGateway": nil, "ipam": Object{"type": "dhcp"}}
	return []upgrade{
		{name: "bridge and host-local", list: entries("bridge", nil)},
		{name: "bridge and static", list: entries("bridge", Object{"ipam": Object{"type": "static",
			"addresses": []Object{{"address": "10.88.0.5/24", "gateway": "10.88.0.1"},
				{"address": "fd00:88::5/64"}}}})},
		{name: "bridge and dhcp, our daemon", list: entries("bridge", lent), daemon: "ours", newest: true},
		{name: "bridge and dhcp, its daemon", list: entries("bridge", lent), daemon: "theirs", newest: true},
		{name: "bridge, ipMasq on iptables", list: entries("bridge", masq("iptables"))},
		{name: "bridge, ipMasq on nftables", list: entries("bridge", masq("nftables")), forward: true, newest: true},
		{name: "bridge, macspoofchk", list: entries("bridge", Object{"macspoofchk": true}), forward: true,
			nameless: true},
		// Debian's release does not know the key, and keeps VLAN 1 always.
		{name: "bridge, vlan", needs: []string{"vlan_filtering"},
			list: entries("bridge", Object{"isDefaultGateway": nil, "vlan": 7, "preserveDefaultVlan": true})},
		{name: "tap", list: entries("tap", Object{"owner": 107, "group": 108}), newest: true},
		{name: "ptp, ipMasq on iptables", list: entries("ptp", masq("iptables"))},
		{name: "ptp, ipMasq on nftables", list: entries("ptp", masq("nftables")), forward: true, newest: true},
		// Debian's release leaves the alias on what it brings home.
		{name: "host-device", list: entries("host-device", Object{"device": "d0"}), newest: true},
		{name: "portmap on iptables", list: entries("portmap", published("iptables")),
			checkless: []nstest.Reference{nstest.Debian()}},
		{name: "portmap on nftables", list: entries("portmap", published("nftables")), forward: true, newest: true,
			nameless: true},
		{name: "firewall on iptables", list: entries("firewall", Object{"backend": "iptables"}), nameless: true},
		{name: "firewall on nftables", list: entries("firewall", nil), forward: true, nameless: true},
		{name: "sbr", list: entries("sbr", nil), checkless: nstest.References()},
		// The ADD of Debian's release loses routes, which our CHECK sees.
		{name: "vrf", list: entries("vrf", Object{"vrfname": "red"}), needs: []string{"vrf"}, newest: true,
			checkless: nstest.References()},
		{name: "bandwidth", list: entries("bandwidth", limited)},
		{name: "tuning", list: entries("tuning", tuned)},
		{name: "macvlan", list: entries("macvlan", Object{"mode": "private", "mtu": 1400}), nameless: true,
			needs: []string{"macvlan"}},
		{name: "ipvlan", list: entries("ipvlan", nil), nameless: true, needs: []string{"ipvlan"}},
		{name: "vlan", list: entries("vlan", Object{"vlanId": 5}), nameless: true, needs: []string{"8021q"}},
		{name: "dummy", list: entries("dummy", nil), nameless: true, needs: []string{"dummy"}, newest: true},
		{name: "loopback", list: entries("loopback", Object{})},
	}
}

var _ = It("an upgrade is there of each plugin", func() {
	var have []string
	for _, u := range upgrades() {
		for _, e := range u.list {
			ipam, _ := e.Keys["ipam"].(Object)
			have = append(have, e.Plugin, fmt.Sprint(ipam["type"]))
		}
	}
	Expect(have).To(ContainElements(nstest.Plugins()))
})

// shared is what stays: locks, the index of leases, the address that was given last, and what
// keeps containers away from 127.0.0.0/8, which the reference's DEL does not know.
var shared = regexp.MustCompile(`(?m)^.*(/lock |/\.hawser|last_reserved_ip).*\n|(?s:^table inet hawser \{.*?^\}\n)`)

// others is the list of another container, with a host port, a device and a VLAN of its own.
func others(list List) List {
	return list.Port(9090).With("host-device", Object{"device": "d1"}).With("vlan", Object{"vlanId": 6})
}

func (u upgrade) lend(ours, theirs *World) {
	if u.daemon == "" {
		return
	}
	ours.IP("link add cni0 type bridge", "addr add 10.88.0.1/24 dev cni0", "link set cni0 up")
	ServeDHCP(ours.Host, "cni0", "10.88.0.50,10.88.0.60")
	of := map[string]*World{"ours": ours, "theirs": theirs}[u.daemon]
	DHCPDaemon(ours.Host, of.Dir, "-timeout", "1s") // the reference repeats its first DISCOVER, which is lost
}

func newPod(id string, list List) *Pod {
	GinkgoHelper()
	p := NewPod(id)
	if list[0].Plugin == "loopback" {
		p.IfName = "lo"
	}
	return p
}

var _ = Describe("an attachment that lives while a node changes its plugins", Label("kernel"), func() {
	for _, ref := range nstest.References() {
		for _, u := range upgrades() {
			if u.newest && ref == nstest.Debian() {
				continue
			}
			Context(fmt.Sprintf("from and to %s: %s", ref.Name, u.name), func() {
				var ours, theirs *World
				var pod, other *Pod
				var before []string
				state := func(more ...string) []string {
					GinkgoHelper()
					return strings.Split(shared.ReplaceAllString(ours.Snapshot(append(more, "nftables",
						"iptables-legacy")...)+
						ours.Files("/var/lib/cni"), ""), "\n")
				}

				BeforeEach(func() {
					nstest.Need(append(u.needs, "iptables", "nft")...)
					ours = NewNode()
					ours.Version = "1.0.0"
					if u.list[0].Keys["master"] != nil {
						Uplink(ours.Host)
					}
					theirs = ours.With(ref)
					u.lend(ours, theirs)
					for _, device := range []string{"d0", "d1"} {
						IP(ours.Host, "link add %s type veth peer name %sp", device, device)
					}
					other = theirs.Up(newPod("other", u.list), others(u.list))
					first := theirs.Up(newPod("one", u.list), u.list)
					theirs.Must("DEL", first, u.list)
					before = state("links", "routes")
					pod = newPod("one", u.list)
				})
				AfterEach(func() {
					ours.Must("CHECK", other, others(u.list))
				})

				It("CHECK passes, DEL removes it", Label("reference"), func() {
					theirs.Up(pod, u.list)
					ours.Must("CHECK", pod, u.list)
					ours.Must("DEL", pod, u.list)
					Expect(state("links", "routes")).To(Equal(before))
				})

				if !u.nameless {
					It("GC removes its rules and leases", Label("reference"), func() { // its links name nobody
						before = state()
						theirs.Up(pod, u.list)
						ours.Must("GC", pod, u.list.Valid(other))
						Expect(state()).To(Equal(before))
						ours.Must("DEL", pod, u.list) // of its links, and of tuning's file
					})
				}

				if u.forward {
					return
				}
				It("the reference's CHECK passes, its DEL removes it", Label("reference"), func() {
					ours.Up(pod, u.list)
					if !slices.Contains(u.checkless, ref) {
						theirs.Must("CHECK", pod, u.list)
					}
					theirs.Must("DEL", pod, u.list)
					Expect(state("links", "routes")).To(Equal(before))
					ours.Must("GC", pod, u.list.Valid(other)) // our records, which the reference does not know
				})
			})
		}
	}
})
