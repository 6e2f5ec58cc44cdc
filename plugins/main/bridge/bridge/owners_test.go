package bridge

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// masqWorld is a world with a machine outside, which has no route to the containers: it answers only to masqueraded
// packets.
type masqWorld struct {
	*world
	server string
	pods   Object // the configuration of the pods' network
}

func newMasqWorld(backend string) masqWorld {
	GinkgoHelper()
	nstest.NeedBackend(backend)
	w := masqWorld{world: newWorld()}
	w.server = w.Router().Serve("tcp", "192.0.2.2:0")
	w.pods = l3(Object{"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend})
	return w
}

// tenant returns another network on another bridge, which does not masquerade packets to the machine outside.
func (w masqWorld) tenant() Object {
	return Merge(w.pods, Object{"name": "tenant", "bridge": "brx", "isDefaultGateway": false,
		"masqExclude": []string{"192.0.2.0/24"}})
}

// isMasqueraded checks that the machine outside answers the container. Other containers may have its address.
func (w masqWorld) isMasqueraded(a Attached) {
	GinkgoHelper()
	w.Cmd("ip", "neigh", "flush", "dev", "br")
	Expect(a.Host.Ask("tcp", w.server)).To(HavePrefix("192.0.2.1:"))
}

// fails runs an ADD whose result cannot be written, so that it is rolled back.
func (w masqWorld) fails(id string, conf Object, addrs ...string) {
	GinkgoHelper()
	w.LendAddrs(id, addrs...)
	call := Call{ID: id, Command: "ADD", Netns: nstest.NewNetns().Path, Conf: conf, Stdout: BrokenPipe{}}
	Expect(w.Call(call).Code).To(Equal(1))
}

var _ = It("ADD attaches two containers with one address to a network whose name is too long for a mark", func() {
	w := newWorld()
	conf := l3(Object{"name": strings.Repeat("n", 70), "isGateway": true})
	w.Attach("static", conf, "10.1.0.2/24 10.1.0.1")
	w.IP("neigh replace 10.1.0.2 lladdr 02:00:00:00:00:01 dev br") // as after an exchange of packets
	w.Attach("successor", conf, "10.1.0.2/24 10.1.0.1")
})

var _ = It("ADD refuses an address that a neighbor's ADD assigned, but not one that the neighbor added itself",
	Label("live-owners", "kernel"), func() {
		w := newWorld()
		w.LendAddrs("pod", "10.1.0.2/24 10.1.0.1")
		pod := Call{ID: "pod", Command: "ADD", Netns: nstest.NewNetns().Path, Conf: l3(Object{"isGateway": true})}
		for _, name := range []string{"tenant", strings.Repeat("t", 70)} { // too long for a mark
			a := w.Attach("tenant", l3(Object{"name": name, "isGateway": true}), "10.1.0.3/24 10.1.0.1")
			a.IP("addr add 10.1.0.2/32 dev eth0")
			w.IP("neigh replace 10.1.0.2 lladdr 02:00:00:00:00:01 dev br") // as after an exchange of packets
			refused := And(HavePrefix("address 10.1.0.2: "), ContainSubstring("tenant"), ContainSubstring("has it"))
			Expect(w.Fails(pod, cni.CodeConflict)).To(refused, "without a record in libcni's cache")

			remember := func(result string) {
				record := Text(Object{"kind": "cniCacheV1", "networkName": name, "containerId": "tenant",
					"ifName": "eth0", "result": json.RawMessage(result)})
				file := "/var/lib/cni/results/" + name + "-tenant-eth0"
				w.Do(func() {
					Expect(os.MkdirAll(filepath.Dir(file), 0o755)).To(Succeed())
					Expect(os.WriteFile(file, []byte(record), 0o600)).To(Succeed())
				})
			}
			remember(strings.ReplaceAll(a.Result.Text, "10.1.0.3/", "10.1.0.2/"))
			Expect(w.Fails(pod, cni.CodeConflict)).To(refused)
			remember(a.Result.Text)
			a.IP("addr del 10.1.0.3/24 dev eth0") // as if a DHCP server had replaced it
			Expect(w.Fails(pod, cni.CodeConflict)).To(refused)
			a.IP("addr add 10.1.0.3/24 dev eth0")
			w.Succeeds(Attached{Call: pod, Result: w.Add(pod)}.As("DEL"))
			w.Succeeds(a.As("DEL"))
		}
	})

var _ = Describe("the masquerade of a live container", Label("live-owners", "kernel"), func() {
	const addr, ownRoute = "10.1.0.2/24 10.1.0.1", "10.1.0.2/32"
	for _, backend := range []string{"nftables", "iptables"} {
		Context("by "+backend, func() {
			var w masqWorld
			BeforeEach(func() { w = newMasqWorld(backend) })

			It("stays when a container of another network and bridge with its address comes and goes", func() {
				pod := w.Attach("pod", w.pods, addr)
				w.isMasqueraded(pod)
				for range 2 {
					tenant := w.Attach("tenant", w.tenant(), ownRoute)
					w.isMasqueraded(pod)
					w.Succeeds(pod.As("CHECK"))
					w.Succeeds(tenant.As("CHECK"))
					w.Succeeds(tenant.As("DEL"))
					w.isMasqueraded(pod)
				}
				w.fails("tenant", w.tenant(), ownRoute)
				w.isMasqueraded(pod)
				w.Succeeds(pod.As("CHECK"))
				w.Succeeds(pod.As("DEL"))
				Expect(w.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("10.1.0"))
			})

			It("stays when a successor with its address is attached before its DEL", func() {
				for _, first := range []int{0, 1} {
					both := []Attached{w.Attach("old", w.pods, addr), w.Attach("new", w.pods, addr)}
					for _, a := range both {
						w.Succeeds(a.As("CHECK"))
					}
					w.Succeeds(both[first].As("DEL"))
					w.isMasqueraded(both[1-first])
					w.Succeeds(both[1-first].As("CHECK"))
					w.Succeeds(both[1-first].As("DEL"))
					Expect(w.Cmd("nft", "list", "ruleset")).NotTo(
						Or(ContainSubstring("10.1.0"), ContainSubstring("owners")))
				}
			})

			It("stays when a successor with its address is rolled back", func() {
				old := w.Attach("old", w.pods, addr)
				w.fails("new", w.pods, addr)
				w.isMasqueraded(old)
				w.Succeeds(old.As("CHECK"))
				w.Succeeds(old.As("DEL"))
				Expect(w.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("10.1.0"))
			})

			It("stays when GC removes another owner of its address", func() {
				pod := w.Attach("pod", w.pods, addr)
				forget := func() { w.IP("neigh flush dev br") } // ADD refuses the address of a known neighbor
				forget()
				tenant := w.Attach("tenant", Merge(w.pods, Object{"name": "tenant"}), addr)
				valid := func(name string, ids ...string) Call {
					list := []Object{}
					for _, id := range ids {
						list = append(list, Object{"containerID": id, "ifname": "eth0"})
					}
					return Call{Command: "GC",
						Conf: Merge(w.pods, Object{"name": name, "cni.dev/valid-attachments": list})}
				}
				w.Succeeds(valid("tenant"))
				w.isMasqueraded(pod)
				w.Succeeds(pod.As("CHECK"))
				w.Succeeds(tenant.As("DEL"))
				forget()
				next := w.Attach("next", Merge(w.pods, Object{"name": "next"}), addr)
				w.Succeeds(valid("net"))
				w.isMasqueraded(next)
				w.Succeeds(next.As("CHECK"))
				w.Succeeds(valid("next"))
				Expect(w.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("10.1.0"))
			})
		})
	}

	It("works if another network attached its address first", func() {
		w := newMasqWorld("nftables")
		tenant := w.Attach("tenant", w.tenant(), ownRoute)
		pod := w.Attach("pod", w.pods, addr)
		w.isMasqueraded(pod)
		w.Succeeds(pod.As("CHECK"))
		w.Succeeds(tenant.As("DEL"))
		w.isMasqueraded(pod)
	})

	key := func(w masqWorld) string { return w.Cmd("nft", "list", "map", "inet", "hawser", "masq4_v2") }

	It("matches packets that the gateway of its VLAN receives", func() {
		nstest.Need("vlan_filtering")
		w := newMasqWorld("nftables")
		w.SetBridgeNF(false) // so that NAT is decided after routing, not in the bridge
		pod := w.Attach("pod", Merge(w.pods, Object{"vlan": 5}), addr)
		Expect(key(w)).To(ContainSubstring(`"br.5" . 10.1.0.2 `))
		w.isMasqueraded(pod)
		w.Succeeds(pod.As("CHECK"))
		w.Succeeds(pod.As("DEL"))
		Expect(key(w)).NotTo(ContainSubstring("10.1.0.2"))
	})

	It("matches packets that an administrator's interface receives if ADD creates no gateway", func() {
		w := newMasqWorld("nftables")
		first := w.Attach("first", conf())
		w.IP("link add br.7 type veth peer name port7", "link set port7 master br up", "link set br.7 up",
			"addr add 10.7.0.1/24 dev br.7")
		w.SetSysctl("net/ipv4/conf/br/arp_ignore", "1") // otherwise the bridge also answers for br.7
		w.SetBridgeNF(false)                            // so that NAT is decided after routing, not in the bridge
		pod := w.Attach("pod", Merge(w.pods, Object{"isDefaultGateway": false}), "10.7.0.2/24")
		IP(pod.Host, "route add default via 10.7.0.1")
		Expect(key(w)).To(ContainSubstring(`"br.7" . 10.7.0.2 `))
		w.isMasqueraded(pod)
		w.Succeeds(pod.As("CHECK"))
		w.Succeeds(pod.As("DEL"))
		Expect(key(w)).NotTo(ContainSubstring("10.7.0.2"))
		w.Succeeds(first.As("DEL"))
	})

	It("keeps its rules until DEL if a successor on the bridge needs others, whose ADD warns about it", func() {
		w := newMasqWorld("nftables")
		old := w.Attach("old", w.pods, addr)
		w.LendAddrs("new", addr)
		c := Call{ID: "new", Command: "ADD", Netns: nstest.NewNetns().Path,
			Conf: Merge(w.pods, Object{"masqExclude": []string{"192.0.2.0/24"}})}
		Expect(w.Warns(c)).To(And(ContainSubstring("10.1.0.2"), ContainSubstring(" net old eth0")))
		w.isMasqueraded(old)
		w.Succeeds(old.As("CHECK"))
		w.Succeeds(old.As("DEL"))
		Expect(w.Cmd("nft", "list", "map", "inet", "hawser", "masq4_v2")).To(
			MatchRegexp(`"br" \. 10\.1\.0\.2 comment "[0-9a-f]{16} net new eth0" : goto masq_v1_\S*/24_[0-9a-f]{16} `))
	})
})

// layoutBefore is the layout of version 0.1.0, with a container's element.
const layoutBefore = `table inet hawser {
	comment "Hawser CNI plugins"
	set masq_exempt4 { type ipv4_addr; flags interval; }
	set masq_exempt6 { type ipv6_addr; flags interval; }
	map masq4_v1 { type ipv4_addr : verdict; elements = { 10.1.0.2 comment "MARK" : goto masq_v1_10.1.0.0/24 } }
	map masq6_v1 { type ipv6_addr : verdict; }
	chain masq_v1 {
		type nat hook postrouting priority srcnat; policy accept;
		ip daddr @masq_exempt4 return
		ip6 daddr @masq_exempt6 return
		ip saddr vmap @masq4_v1
		ip6 saddr vmap @masq6_v1
	}
	chain masq_v1_10.1.0.0/24 {
		ip daddr 10.1.0.0/24 return
		ip daddr 224.0.0.0/4 return
		masquerade
	}
}
`

var _ = Describe("a container whose masquerade an earlier version created", Label("live-owners", "kernel"), func() {
	var w masqWorld
	var old Attached
	BeforeEach(func() {
		w = newMasqWorld("nftables")
		old = w.Attach("old", w.pods, "10.1.0.2/24 10.1.0.1")
		mark := Show(w.Host, hostEnd(old.Result)).Ifalias
		w.Cmd("nft", "delete", "table", "inet", "hawser")
		w.Cmd("sh", "-c", fmt.Sprintf("nft -f - <<'END'\n%sEND\n", strings.ReplaceAll(layoutBefore, "MARK", mark)))
	})
	next := func() Attached { return w.Attach("next", w.pods, "10.1.0.3/24 10.1.0.1") }

	It("keeps it next to new ones, passes CHECK, and leaves nothing", func() {
		for range 2 {
			w.isMasqueraded(old)
			w.Succeeds(old.As("CHECK"))
			w.Succeeds(next().As("CHECK"))
			tenant := w.Attach("tenant", w.tenant(), "10.1.0.2/32")
			w.isMasqueraded(old)
			w.Succeeds(tenant.As("DEL"))
			w.isMasqueraded(old)
			w.Succeeds(Call{ID: "next", Command: "DEL", Conf: w.pods})
		}
		w.Succeeds(old.As("DEL"))
		Expect(w.Cmd("nft", "list", "ruleset")).NotTo(Or(ContainSubstring("10.1.0"), ContainSubstring("chain masq_v1")))
		w.isMasqueraded(next())
	})

	It("loses it by DEL without a result, which keeps the others'", func() {
		a := next()
		w.Succeeds(Call{ID: "old", Command: "DEL", Conf: w.pods})
		Expect(w.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("10.1.0.2"))
		w.isMasqueraded(a)
	})

	It("loses it by GC, which keeps the others'", func() {
		a := next()
		w.Succeeds(Call{Command: "GC", Conf: Merge(w.pods, Object{
			"cni.dev/valid-attachments": []Object{{"containerID": "next", "ifname": "eth0"}}})})
		Expect(w.Cmd("nft", "list", "ruleset")).NotTo(
			Or(ContainSubstring("10.1.0.2"), ContainSubstring("chain masq_v1 ")))
		w.isMasqueraded(a)
	})
})
