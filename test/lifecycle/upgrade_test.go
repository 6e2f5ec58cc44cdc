package lifecycle_test

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/test/node"
)

// entries are a list with this plugin in it, behind a bridge where it needs something before it.
func entries(plugin string, keys Object) []node.Entry {
	ranges := []any{[]any{Object{"subnet": "10.88.0.0/24"}}, []any{Object{"subnet": "fd00:88::/64"}}}
	ipam := Object{"ipam": Object{"type": "host-local", "ranges": ranges}}
	bridge := Merge(Object{"bridge": "cni0", "isDefaultGateway": true}, ipam)
	switch plugin {
	case "bridge":
		return []node.Entry{{Plugin: plugin, Keys: Merge(bridge, keys)}}
	case "ptp":
		return []node.Entry{{Plugin: plugin, Keys: Merge(ipam, keys)}}
	case "loopback":
		return []node.Entry{{Plugin: plugin, Keys: keys}}
	}
	return []node.Entry{{Plugin: "bridge", Keys: bridge}, {Plugin: plugin, Keys: keys}}
}

// upgrade is a list whose attachments must outlive the plugins that made them.
type upgrade struct {
	name      string
	list      []node.Entry
	forward   bool // the reference does not know what ours makes
	newest    bool // Debian's release does not have it
	checkless bool // Debian's release fails CHECK of what it made itself
	needs     []string
}

func upgrades() []upgrade {
	masq := func(backend string) Object { return Object{"ipMasq": true, "ipMasqBackend": backend} }
	published := func(backend string) Object {
		return Object{"backend": backend, "runtimeConfig": Object{"portMappings": []Object{
			{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
			{"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"}}}}
	}
	tuned := Object{"sysctl": Object{"net.ipv4.conf.eth0.arp_filter": "1"}, "mac": "0a:00:00:00:00:07", "promisc": true}
	return []upgrade{
		{name: "bridge and host-local", list: entries("bridge", nil)},
		{name: "bridge and static", list: entries("bridge", Object{"ipam": Object{"type": "static",
			"addresses": []Object{{"address": "10.88.0.5/24", "gateway": "10.88.0.1"},
				{"address": "fd00:88::5/64"}}}})},
		{name: "bridge, ipMasq on iptables", list: entries("bridge", masq("iptables"))},
		{name: "bridge, ipMasq on nftables", list: entries("bridge", masq("nftables")), forward: true, newest: true},
		{name: "bridge, macspoofchk", list: entries("bridge", Object{"macspoofchk": true}), forward: true},
		// Debian's release does not know the key, and keeps VLAN 1 always.
		{name: "bridge, vlan", needs: []string{"vlan_filtering"},
			list: entries("bridge", Object{"isDefaultGateway": nil, "vlan": 7, "preserveDefaultVlan": true})},
		{name: "ptp, ipMasq on iptables", list: entries("ptp", masq("iptables"))},
		{name: "ptp, ipMasq on nftables", list: entries("ptp", masq("nftables")), forward: true, newest: true},
		{name: "portmap on iptables", list: entries("portmap", published("iptables")), checkless: true},
		{name: "portmap on nftables", list: entries("portmap", published("nftables")), forward: true, newest: true},
		{name: "tuning", list: entries("tuning", tuned)},
		{name: "loopback", list: entries("loopback", Object{})},
	}
}

// shared is what stays: locks, the index of leases, the address that was given last, and what
// keeps containers away from 127.0.0.0/8, which the reference's DEL does not know.
var shared = regexp.MustCompile(`(?m)^.*(/lock |/\.hawser|last_reserved_ip).*\n|(?s:^table inet hawser \{.*?^\}\n)`)

// newPod is a container for a list.
func newPod(id string, list []node.Entry) *node.Pod {
	GinkgoHelper()
	p := node.NewPod(id)
	if list[0].Plugin == "loopback" {
		p.IfName = "lo"
	}
	return p
}

// elsewhere is a list with other host ports.
func elsewhere(list []node.Entry) []node.Entry {
	if list[len(list)-1].Plugin != "portmap" {
		return list
	}
	return node.Port(list, 9090)
}

var _ = Describe("an attachment that lives while a node changes its plugins", Label("kernel"), func() {
	for _, ref := range nstest.References() {
		for _, u := range upgrades() {
			if u.newest && ref == nstest.Debian() {
				continue
			}
			Context(fmt.Sprintf("from and to %s: %s", ref.Name, u.name), func() {
				var ours, theirs *node.Node
				var pod, other *node.Pod
				var before []string
				state := func(more ...string) []string {
					GinkgoHelper()
					return strings.Split(shared.ReplaceAllString(ours.Snapshot(append(more, "nftables",
						"iptables-legacy")...)+
						ours.Files("/var/lib/cni"), ""), "\n")
				}

				BeforeEach(func() {
					nstest.Need(append(u.needs, "iptables", "nft")...)
					ours = node.New()
					ours.Version = "1.0.0"
					theirs = ours.With(ref)
					other = theirs.Add(newPod("other", u.list), elsewhere(u.list))
					first := theirs.Add(newPod("one", u.list), u.list)
					theirs.Succeeds("DEL", first, u.list)
					before = state("links", "routes")
					pod = newPod("one", u.list)
				})
				AfterEach(func() {
					ours.Succeeds("CHECK", other, elsewhere(u.list))
				})

				It("CHECK passes, DEL removes it", func() {
					theirs.Add(pod, u.list)
					ours.Succeeds("CHECK", pod, u.list)
					ours.Succeeds("DEL", pod, u.list)
					Expect(state("links", "routes")).To(Equal(before))
				})

				It("GC removes its rules and leases", func() { // its links say not whose they are
					before = state()
					theirs.Add(pod, u.list)
					ours.Version = "1.1.0"
					valid := slices.Clone(u.list)
					for i, e := range valid {
						valid[i].Keys = Merge(e.Keys, Object{"cni.dev/valid-attachments": []Object{
							{"containerID": other.ID, "ifname": cmp.Or(other.IfName, "eth0")}}})
					}
					ours.Succeeds("GC", pod, valid)
					Expect(state()).To(Equal(before))
				})

				if u.forward {
					return
				}
				It("the reference's CHECK passes, its DEL removes it", func() {
					ours.Add(pod, u.list)
					if !u.checkless || ref != nstest.Debian() {
						theirs.Succeeds("CHECK", pod, u.list)
					}
					theirs.Succeeds("DEL", pod, u.list)
					Expect(state("links", "routes")).To(Equal(before))
				})
			})
		}
	}
})
