package docs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// sent is what the runtime sends of each capability.
var sent = map[string]any{
	"portMappings": []object{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
		{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}},
	"bandwidth": object{"ingressRate": 8000000, "ingressBurst": 2147483647, "egressRate": 8000000,
		"egressBurst": 800000},
	"mac":      "02:00:00:00:00:55",
	"ips":      []string{"10.3.0.7"},
	"ipRanges": [][]object{{{"subnet": "10.3.0.0/24"}}},
}

func (e example) entries() (list []object) {
	all, ok := e.doc["plugins"].([]any)
	if !ok {
		return []object{e.doc}
	}
	for _, p := range all {
		list = append(list, p.(object))
	}
	return list
}

// asks reports whether an entry has such a key, with such a value if one is given.
func (e example) asks(key string, value ...string) bool {
	for _, entry := range e.entries() {
		if v, ok := entry[key]; ok && (len(value) == 0 || v == value[0]) {
			return true
		}
	}
	return false
}

func (e example) labels() Labels {
	if e.asks("vlan") || e.asks("vlanTrunk") || e.asks("vrfname") || len(e.kinds()) > 0 {
		return Label("kernel")
	}
	return nil
}

// kinds are what the kernel needs for the plugins whose kind of interface not every one has.
func (e example) kinds() (needs []string) {
	for plugin, feature := range map[string]string{"vlan": "8021q", "ipvlan": "ipvlan", "dummy": "dummy"} {
		if e.asks("type", plugin) {
			needs = append(needs, feature)
		}
	}
	return needs
}

// prepare skips what this machine cannot do, and makes what is not the plugins'
// to make: the chain of kube-proxy that an example names.
func (e example) prepare(host *nstest.Host) (pluginDir string) {
	if e.asks("vlan") || e.asks("vlanTrunk") {
		nstest.Need("vlan_filtering", "8021q")
	}
	if e.asks("vrfname") {
		nstest.Need("vrf")
	}
	if e.asks("macspoofchk") {
		nstest.Need("nft-bridge")
	}
	if e.asks("ipMasqBackend", "iptables") || e.asks("externalSetMarkChain") {
		nstest.Need("iptables")
	}
	nstest.Need(e.kinds()...)
	if e.asks("master") {
		plugintest.Uplink(host)
	}
	for _, entry := range e.entries() {
		if ipam, _ := entry["ipam"].(object); ipam["type"] == "dhcp" {
			lend(host, entry["bridge"].(string))
		}
		if chain, ok := entry["externalSetMarkChain"].(string); ok {
			host.Cmd("iptables", "-t", "nat", "-N", chain)
			host.Cmd("ip6tables", "-t", "nat", "-N", chain)
		}
	}
	for _, entry := range e.entries() {
		if entry["type"] == "host-device" {
			host.Cmd("ip", "link", "add", "ens5", "address", "02:00:00:00:05:01", "type", "veth", "peer", "ens5p")
		}
	}
	dir := GinkgoT().TempDir()
	for name := range plugins {
		Expect(os.Symlink(nstest.Build(name), filepath.Join(dir, name))).To(Succeed())
	}
	return dir
}

func lend(host *nstest.Host, bridge string) {
	host.IP("link add "+bridge+" type bridge", "addr add 10.7.0.1/24 dev "+bridge, "link set "+bridge+" up")
	plugintest.ServeDHCP(host, bridge, "10.7.0.50,10.7.0.60")
	plugintest.DHCPDaemon(host, filepath.Dir(nstest.Build("dhcp")))
}

func (e example) list() *libcni.NetworkConfigList {
	GinkgoHelper()
	text := e.text
	if e.doc["plugins"] == nil {
		text = plugintest.Text(object{"cniVersion": e.doc["cniVersion"], "name": e.doc["name"],
			"plugins": []any{e.doc}})
	}
	list := nstest.Must(libcni.NetworkConfFromBytes([]byte(text)))
	return list
}

func (e example) ifName() string {
	if e.entries()[0]["type"] == "loopback" {
		return "lo"
	}
	return "eth0"
}

// once attaches a container, checks it and takes it away; it returns the result.
func (e example) once(host *nstest.Host, c *libcni.CNIConfig, id string) object {
	GinkgoHelper()
	cont, list := nstest.NewNetns(), e.list()
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: cont.Path, IfName: e.ifName(), CapabilityArgs: sent}
	run := func(fn func(context.Context) error) {
		GinkgoHelper()
		host.Do(func() { Expect(fn(context.Background())).To(Succeed()) })
	}
	var result object
	run(func(ctx context.Context) error {
		r, err := c.AddNetworkList(ctx, list, rt)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(plugintest.Text(r)), &result)
	})
	Expect(validate(schema("result"), result)).To(Succeed())
	if e.ifName() == "eth0" && !e.asks("type", "host-device") { // whose alias is its name on the host
		Expect(host.Cmd("ip", "-d", "link") + cont.Cmd("ip", "-d", "link")).To(ContainSubstring(id))
	}
	link := plugintest.Show(cont, e.ifName())
	for _, ip := range asList(result["ips"]) {
		Expect(plugintest.Text(link.AddrInfo)).To(ContainSubstring(strings.Split(ip.(object)["address"].(string),
			"/")[0]))
	}
	if list.CNIVersion == "1.1.0" {
		run(func(ctx context.Context) error { return c.GetStatusNetworkList(ctx, list) })
	}
	run(func(ctx context.Context) error { return c.CheckNetworkList(ctx, list, rt) })
	run(func(ctx context.Context) error { return c.DelNetworkList(ctx, list, rt) })
	Expect(host.Cmd("ip", "-d", "link")).NotTo(ContainSubstring(id), "links whose alias names the container")
	Expect(host.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring(id), "rules that name it")
	Expect(host.Cmd("find", "/var/lib/cni/networks", "-type", "f", "-name", "*[.:]*", "!", "-name",
		"last_reserved_ip.*")).To(BeEmpty())
	return result
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

var _ = Describe("the examples are run:", Label("examples"), func() {
	for _, page := range pages() {
		list := examples(page)
		for i, e := range list {
			if e.schema() != "network" {
				continue
			}
			It(fmt.Sprintf("%s, number %d, %s", page, i+1, e.doc["name"]), e.labels(), func() {
				host := nstest.NewHost()
				host.Cmd("mkdir", "-p", "/var/lib/cni/networks")
				host.Cmd("mount", "-t", "tmpfs", "tmpfs", "/var/log") // the machine's is not the example's to write to
				c := libcni.NewCNIConfigWithCacheDir([]string{e.prepare(host)}, GinkgoT().TempDir(), nil)
				result := e.once(host, c, "container1")
				after := host.Snapshot()
				e.once(host, c, "container2")
				Expect(host.Snapshot()).To(Equal(after), "the second container leaves no more than the first")
				if i+1 < len(list) && list[i+1].schema() == "result" {
					Expect(withSandbox(result)).To(Equal(withSandbox(list[i+1].doc)))
				}
			})
		}
	}
})

func withSandbox(result object) string {
	GinkgoHelper()
	for _, i := range asList(result["interfaces"]) {
		if o := i.(object); o["sandbox"] != nil {
			o["sandbox"] = "/run/netns/c1"
		}
	}
	return plugintest.Text(result)
}

var fence = regexp.MustCompile("(?ms)^```json\n(.*?)^```$")

// example is a JSON document that a page shows.
type example struct {
	page string // from the root
	text string
	doc  object
}

func examples(page string) (list []example) {
	GinkgoHelper()
	for _, m := range fence.FindAllStringSubmatch(read(root(page)), -1) {
		doc, ok := parsed(m[1]).(object)
		Expect(ok).To(BeTrue(), "%s: no object:\n%s", page, m[1])
		list = append(list, example{page, m[1], doc})
	}
	return list
}

// pages are all that people read.
func pages() (list []string) {
	GinkgoHelper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "plugins/*/*.md", "plugins/*/*/*.md"} {
		files := nstest.Must(filepath.Glob(root(pattern)))
		for _, f := range files {
			page := nstest.Must(filepath.Rel(root(), f))
			list = append(list, page)
		}
	}
	return list
}

func (e example) schema() string {
	has := func(key string) bool { return e.doc[key] != nil }
	switch {
	case has("code"):
		return "error"
	case has("plugins"), has("type"):
		return "network"
	}
	return "result"
}

var _ = Describe("the pages", func() {
	It("show JSON that the schemas take, and the parsers", Label("examples"), func() {
		seen := map[string]int{}
		for _, page := range pages() {
			for _, e := range examples(page) {
				seen[e.schema()]++
				Expect(validate(schema(e.schema()), e.doc)).To(Succeed(), "%s:\n%s", page, e.text)
				if e.schema() != "network" {
					continue
				}
				for plugin := range plugins {
					r, code := checkConfig(plugin, e.text)
					Expect(code).To(Or(BeZero(), Equal(3)), "%s: %s", page, e.text) // 3: it is other plugins'
					Expect(r.lines("warning")).To(BeEmpty(), "%s: %s", page, e.text)
				}
			}
		}
		Expect(seen).To(And(HaveKeyWithValue("network", BeNumerically(">", 15)), HaveKeyWithValue("error", 1)))
	})

	It("show no JSON outside of a block that is checked", func() {
		plain := regexp.MustCompile(`(?m)^(    .*"(type|cniVersion)": ".*|.*<<<'\{.*)$`)
		for _, page := range pages() {
			text := fence.ReplaceAllString(read(root(page)), "")
			for _, line := range plain.FindAllString(text, -1) {
				Fail(fmt.Sprintf("%s: %s", page, strings.TrimSpace(line)))
			}
		}
	})
})

var _ = Describe("the schema of results", func() {
	It("takes every result that the specs of the plugins have on record", func() {
		files := append(glob("pkg/cni/testdata/*.json"), glob("plugins/*/*/testdata/*.json")...)
		Expect(len(files)).To(BeNumerically(">=", 25))
		for _, file := range files {
			Expect(validate(schema("result"), parsed(read(file)))).To(Succeed(), file)
		}
	})
})
