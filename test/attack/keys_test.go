package attack_test

import (
	"fmt"
	"os"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// keysOf lists the keys that a plugin documents, as paths such as "ipam.ranges[][].subnet".
func keysOf(plugin string) (keys []string) {
	GinkgoHelper()
	help := nstest.NewHost().Cmd(nstest.Build(plugin), "--help")
	_, list, found := strings.Cut(help, "Keys of the configuration:\n")
	Expect(found).To(BeTrue(), help)
	for line := range strings.Lines(list) {
		words := strings.Fields(line)
		if len(words) == 0 {
			break
		}
		keys = append(keys, words[0])
	}
	return keys
}

// withKey returns an object that also has a value at a path. Each "[]" is a list of one element.
func withKey(o Object, path string, value any) Object {
	key, rest, isNested := strings.Cut(path, ".")
	name := strings.TrimRight(key, "[]")
	if isNested {
		inner, _ := o[name].(Object)
		value = withKey(inner, rest, value)
	}
	for range strings.Count(key, "[]") {
		value = []any{value}
	}
	return Merge(o, Object{name: value})
}

// values returns values that a tenant may know of a victim and of the node, of each type that keys have.
func values(v *neighbor) []any {
	return []any{v.hostEnd(), "cni0", v.Decode().Interfaces[1].MAC, v.Addr(), v.Addr() + "/24", "10.88.0.0/28",
		"127.0.0.1", "/run/hawser", v.Network, "isolated", "passthru", true, 0, 1, 68, 254, 8080,
		[]any{v.Addr()}, []any{"10.88.0.0/28"}, []any{"-d", "10.88.0.0/16"}, []any{"ip", "saddr", "0.0.0.0/0"},
		published(8080, nil)["portMappings"], Object{"net.ipv4.ip_forward": "0"},
		[]any{Object{"dst": "10.88.0.0/24", "gw": v.Addr()}}}
}

// basis returns a valid configuration of a plugin for the tenant, whose keys sweep replaces one by one.
func basis(plugin string, tenant *Pod) Object {
	ipam := HostLocal("10.99.0.0/24")
	conf := Object{"cniVersion": "1.0.0", "name": "tenant", "type": plugin}
	switch plugin {
	case "bridge":
		return Merge(conf, Object{"bridge": "brx", "isGateway": true, "ipMasq": true, "ipam": ipam})
	case "ptp":
		return Merge(conf, Object{"ipMasq": true, "ipam": ipam})
	case "macvlan", "ipvlan", "vlan":
		return Merge(conf, Object{"master": "spare", "vlanId": 5, "ipam": ipam})
	case "host-device":
		return Merge(conf, Object{"device": "spare", "ipam": ipam})
	case "dummy", "tap":
		return Merge(conf, Object{"ipam": ipam})
	case "host-local", "dhcp":
		return Merge(conf, Object{"ipam": Merge(ipam, Object{"type": plugin})})
	case "static":
		return Merge(conf, Object{"ipam": static("10.99.0.5/24", "10.99.0.1")})
	}
	conf["prevResult"] = result(tenant, "10.99.0.9", Object{"name": "byhand"})
	switch plugin {
	case "portmap":
		return Merge(conf, Object{"snat": true, "runtimeConfig": published(9092, nil)})
	case "vrf":
		return Merge(conf, Object{"vrfname": "blue"})
	case "bandwidth":
		return Merge(conf, Object{"ingressRate": 8000000, "ingressBurst": 800000})
	}
	return conf
}

// sweep calls ADD and DEL of a plugin with each value for each key, and lists the keys that did harm. After harm, it
// uses another node.
func sweep(plugin string, world func() (*World, *neighbor)) (harmful []string) {
	GinkgoHelper()
	begin := func() (*World, *neighbor, *Pod) {
		w, v := world()
		w.IP("link add name spare up type veth peer name spare1")
		tenant := NewPod("tenant")
		if conf := basis(plugin, tenant); conf["prevResult"] != nil {
			w.IP("link add name byhand up type veth peer name eth0 netns " + tenant.Name)
			tenant.IP("link set eth0 up", "addr add 10.99.0.9/24 dev eth0")
		}
		return w, v, tenant
	}
	w, v, tenant := begin()
	served := 0
	for _, key := range keysOf(plugin) {
		for _, value := range values(v) {
			if text, ok := value.(string); ok && strings.HasSuffix(key, "dataDir") && text[0] != '/' {
				continue // it would be below the directory of the tests
			}
			try := func() (harm []string) {
				call := Call{Command: "ADD", ID: tenant.ID, Netns: tenant.Netns,
					Conf: withKey(basis(plugin, tenant), key, value)}
				if w.Try(plugin, call).Code != 0 {
					return nil
				}
				served++
				harm = v.harm() // while the tenant is attached
				call.Command = "DEL"
				w.Try(plugin, call)
				return harm
			}
			harm := try()
			if slices.Equal(harm, []string{lost}) { // a busy machine may lose a segment without an attack
				w, v, tenant = begin()
				harm = try()
			}
			if len(harm) > 0 {
				harmful = append(harmful, fmt.Sprintf("%s: %v: %s", key, value, harm[0]))
				w, v, tenant = begin()
			}
		}
	}
	Expect(served).To(BeNumerically(">", 0), "ADDs that succeeded")
	return append(harmful, v.harm()...)
}

// kernelOf returns the labels of a spec, and a check that the kernel has the kind of links that a plugin creates.
func kernelOf(plugin string) (labels Labels, need func()) {
	feature := map[string]string{"dummy": "dummy", "ipvlan": "ipvlan", "vlan": "8021q", "vrf": "vrf"}[plugin]
	if feature == "" {
		return Labels{}, func() {}
	}
	return Label("kernel"), func() { nstest.Need(feature) }
}

var _ = Describe("each key of a tenant's configuration", Label("tenant-keys", "slow"), func() {
	for _, plugin := range nstest.Standalone() {
		labels, need := kernelOf(plugin)
		It("harms no other container: "+plugin, labels, func() {
			need()
			Expect(sweep(plugin, func() (*World, *neighbor) {
				n := NewNode()
				n.Spoiled = true // by links and lease directories that a configuration names
				return n, newNeighbor(n, Usual(""))
			})).To(BeEmpty())
		})
	}

	// The harm that the reference does by single keys is not part of the tests: HAWSER_ATTACK_REFERENCE=1 shows it.
	for _, plugin := range nstest.Standalone() {
		if os.Getenv("HAWSER_ATTACK_REFERENCE") == "" || !nstest.Newest().Has(plugin) {
			continue
		}
		It("is tried with the reference: "+plugin, func() {
			harmful := sweep(plugin, func() (*World, *neighbor) {
				n := NewNode()
				n.Spoiled = true
				theirs := referenceOn(n)
				return theirs, newNeighbor(theirs, Usual("iptables"))
			})
			AddReportEntry("harm", strings.Join(harmful, "\n"))
		})
	}
})
