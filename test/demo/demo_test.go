// Package demo_test attaches three containers to a throw-away host through libcni, draws the network, proves it
// with traffic, takes it down and shows that nothing is left. make demo shows what it prints.
package demo_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/test/pods"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestDemo(t *testing.T) { nstest.RunSpecs(t, "demo") }

// demo is the host, the machine outside, the network and its three containers.
type demo struct {
	host, outside   *nstest.Host
	cni             *libcni.CNIConfig
	list            *libcni.NetworkConfigList
	one, two, three *container
}

// container is a pod and what the runtime says of it.
type container struct {
	pods.Pod
	netns *nstest.Host
	rt    *libcni.RuntimeConf
}

const published = "8080"

var _ = It("three containers on a throw-away host", func() {
	d := newDemo()
	before := d.state()
	d.tryWithoutFirewall()
	d.attach()
	d.draw()
	d.prove()
	d.check()
	d.detach()
	d.expectNothingLeft(before)
	fmt.Println("\nAll of it is as it should be.")
})

// newDemo makes the host. It forwards nothing of itself where the network has a
// plugin that can do something about that.
func newDemo() *demo {
	data := nstest.Must(os.ReadFile(cmp.Or(os.Getenv("HAWSER_CONFLIST"), "demo.conflist")))
	list := nstest.Must(libcni.NetworkConfFromBytes(data))
	plugins := filepath.Dir(nstest.Build("host-local"))
	for _, p := range list.Plugins {
		nstest.Build(p.Network.Type)
	}
	fmt.Printf("Hawser: three containers on a throw-away host (plugins from %s, CNI %s)\n", plugins, list.CNIVersion)
	d := &demo{host: nstest.NewHost(), list: list,
		cni: libcni.NewCNIConfigWithCacheDir([]string{plugins}, "/var/lib/cni", nil)}
	d.outside = nstest.NewOutside(d.host)
	if d.hasFirewall() { // a firewall as Docker or an administrator has it
		d.host.Cmd("iptables", "-P", "FORWARD", "DROP")
		d.host.Cmd("ip6tables", "-P", "FORWARD", "DROP")
	}
	return d
}

func title(text string) { fmt.Printf("\n── %s\n", text) }

// called is a Host under the name that the conversations show.
func called(name string, h *nstest.Host) *nstest.Host {
	named := *h
	named.Name = name
	return &named
}

// run calls the library on the host, and says how long it took.
func (d *demo) run(what string, fn func(context.Context) error) {
	GinkgoHelper()
	began := time.Now()
	d.host.Do(func() { Expect(fn(context.Background())).To(Succeed(), what) })
	fmt.Printf("   %-56s %5.1f ms\n", what, float64(time.Since(began).Microseconds())/1000)
}

func (d *demo) add(list *libcni.NetworkConfigList, name string, ports ...string) *container {
	GinkgoHelper()
	netns := nstest.NewNetns()
	var mappings []map[string]any
	for _, proto := range ports {
		mappings = append(mappings, map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": proto})
	}
	c := &container{netns: netns, rt: &libcni.RuntimeConf{ContainerID: "demo-" + name, NetNS: netns.Path,
		IfName: "eth0", CapabilityArgs: map[string]any{"portMappings": mappings}}}
	var addrs []string
	d.run("ADD    "+name, func(ctx context.Context) error {
		result, err := d.cni.AddNetworkList(ctx, list, c.rt)
		if err != nil {
			return err
		}
		r, err := types100.GetResult(result)
		for _, ip := range r.IPs {
			addrs = append(addrs, ip.Address.IP.String())
		}
		return err
	})
	Expect(addrs).To(HaveLen(2), "one of IPv4 and one of IPv6")
	c.Pod = pods.At(netns.Path, addrs...)
	c.Host = called(name, c.Host)
	c.Serve()
	return c
}

func (d *demo) del(list *libcni.NetworkConfigList, c *container, how string) {
	GinkgoHelper()
	d.run("DEL    "+c.Name+" "+how, func(ctx context.Context) error { return d.cni.DelNetworkList(ctx, list, c.rt) })
}

func (d *demo) traffic() pods.Traffic {
	return pods.Traffic{Host: called("host", d.host), Outside: called("outside", d.outside), Published: published,
		Say: func(line string) { fmt.Println("   " + line) }}
}

// tryWithoutFirewall shows what the host drops: it attaches the first container by
// the list without firewall, and takes it away again.
func (d *demo) tryWithoutFirewall() {
	if !d.hasFirewall() {
		return
	}
	title("the host's FORWARD chain drops: the network without the plugin firewall")
	list := *d.list
	list.Plugins = slices.DeleteFunc(slices.Clone(list.Plugins), isFirewall)
	one := d.add(&list, "one", "tcp")
	w := d.traffic()
	w.ExpectDropped(one.Pod)
	d.del(&list, one, "in order")
	one.netns.Unpin()
}

func (d *demo) hasFirewall() bool { return slices.ContainsFunc(d.list.Plugins, isFirewall) }

func isFirewall(p *libcni.PluginConfig) bool { return p.Network.Type == "firewall" }

// hasGC: GC and STATUS came with version 1.1.0.
func (d *demo) hasGC() bool { return d.list.CNIVersion == "1.1.0" }

func (d *demo) attach() {
	GinkgoHelper()
	title("attach, through libcni")
	if d.hasGC() {
		d.run("STATUS ready", func(ctx context.Context) error { return d.cni.GetStatusNetworkList(ctx, d.list) })
	}
	d.one, d.two, d.three = d.add(d.list, "one", "tcp", "udp"), d.add(d.list, "two"), d.add(d.list, "three")
}

func (d *demo) prove() {
	title("proof: each server answers with the source address that it sees")
	if d.hasFirewall() {
		fmt.Println("   The FORWARD chain still drops; firewall lets the containers through.")
	}
	w := d.traffic()
	w.Expect(d.two.Pod, d.one.Pod)
	w.Expect(d.three.Pod, d.one.Pod)
}

func (d *demo) check() {
	title("CHECK")
	for _, c := range []*container{d.one, d.two, d.three} {
		d.run("CHECK  "+c.Name+": as ADD left it", func(ctx context.Context) error {
			return d.cni.CheckNetworkList(ctx, d.list, c.rt)
		})
	}
}

// detach takes the containers away in the three ways of real life.
func (d *demo) detach() {
	title("take it down")
	d.del(d.list, d.one, "in order")
	d.one.netns.Unpin()
	d.two.netns.Unpin()
	d.del(d.list, d.two, "after its namespace was gone")
	d.del(d.list, d.two, "once more")
	d.three.netns.Unpin()
	if !d.hasGC() {
		d.del(d.list, d.three, "after its namespace was gone")
		return
	}
	// A node that lost its power: the runtime's cache does not know the container.
	d.host.Cmd("rm", "-r", "/var/lib/cni/results")
	d.run("GC     three, whose DEL never came", func(ctx context.Context) error {
		return d.cni.GCNetworkList(ctx, d.list, &libcni.GCArgs{})
	})
}

// state is the output of the commands that must be what it was.
func (d *demo) state() (all []string) {
	GinkgoHelper()
	for _, command := range []string{"ip -br link", "ip -br addr", "ip -4 route show table all",
		"ip -6 route show table all", "ip rule", "nft -s list ruleset",
		"sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding", "find /run /var/lib -not -path '/run/netns/*'"} {
		for line := range strings.Lines(d.host.Cmd("sh", "-c", command)) {
			if line = strings.TrimRight(line, " \n"); line != "" {
				all = append(all, line)
			}
		}
	}
	return all
}

// dropShared is what an administrator would do to give up the network.
const dropShared = `
ip link del cni0
nft delete table inet hawser 2>/dev/null || nft flush ruleset
sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0
rm -rf /var/lib/cni/networks /var/lib/cni/results /run/hawser /run/cni`

// dropForwardRules leaves the host the policies of its forward chains.
const dropForwardRules = `
for iptables in iptables ip6tables; do
	$iptables -F
	$iptables -X
done
rm -f /run/xtables.lock`

// expectNothingLeft shows what differs from before, and takes away what the next container would share.
func (d *demo) expectNothingLeft(before []string) {
	title("what is left: only what the next container would share")
	for _, line := range d.state() {
		if !slices.Contains(before, line) && telling(line) {
			fmt.Println("   + " + line)
		}
	}
	Eventually(func() []string { return plugintest.Leftovers(d.host) }).Should(BeEmpty())
	title("without that: before and after compared")
	drop := dropShared
	if d.hasFirewall() {
		drop += dropForwardRules
	}
	d.host.Cmd("sh", "-euc", drop)
	Eventually(d.state).Should(Equal(before))
	fmt.Printf("   no difference in %d lines of state\n", len(before))
}

// telling is false of what follows from other lines: the routes that the kernel
// makes of an address, and what is inside an nftables object.
func telling(line string) bool {
	return !slices.ContainsFunc([]string{"\t\t", "\t}", "\tcomment", "}", "anycast", "local", "broadcast", "multicast",
		"fe80"}, func(prefix string) bool { return strings.HasPrefix(line, prefix) })
}

// draw shows the network as the kernel tells it, through ip and nft.
func (d *demo) draw() {
	title("the network")
	br := plugintest.Show(d.host, "cni0")
	fmt.Printf("   outside  eth0   %s\n", words(plugintest.Show(d.outside, "eth0")))
	fmt.Println("     │")
	fmt.Printf("   ┌─┴─ host ───────────────────────────────────────────────────────────\n")
	fmt.Printf("   │ ext           %s\n", words(plugintest.Show(d.host, "ext")))
	fmt.Printf("   │ %-5s bridge  %s   %s\n", br.Ifname, words(br), br.Address)
	all := []*container{d.one, d.two, d.three}
	for i, c := range all {
		branch, stem := "├", "│"
		if i == len(all)-1 {
			branch, stem = "└", " "
		}
		eth0 := plugintest.Show(c.netns, "eth0")
		port := plugintest.Show(d.host, d.portOf(eth0))
		fmt.Printf("   │  %s─ %-13s ══ %-5s eth0  %s   %s\n", branch, port.Ifname, c.Name, words(eth0), eth0.Address)
		if port.Ifalias != "" {
			fmt.Printf("   │  %s    owner %s\n", stem, port.Ifalias)
		}
	}
	fmt.Println("   └────────────────────────────────────────────────────────────────────")
	d.drawTables()
}

func (d *demo) drawTables() {
	for _, h := range []*nstest.Host{called("the host", d.host), d.one.Host} {
		title("routes of " + h.Name)
		indent(h.Cmd("ip", "-4", "route") + h.Cmd("ip", "-6", "route"))
	}
	if d.hasFirewall() {
		title("the host's FORWARD chain")
		indent(d.host.Cmd("iptables", "-S"))
	}
	title("NAT and firewall")
	// Other backends than ours have other tables.
	indent(d.host.Cmd("sh", "-c", "nft list table inet hawser 2>/dev/null || nft list ruleset"))
}

func (d *demo) portOf(eth0 plugintest.Link) string {
	var ports []plugintest.Link
	d.host.JSON(&ports, "ip", "-j", "link", "show", "master", "cni0")
	i := slices.IndexFunc(ports, func(l plugintest.Link) bool { return l.Index == eth0.Peer })
	Expect(i).To(BeNumerically(">=", 0))
	return ports[i].Ifname
}

func words(l plugintest.Link) string { return strings.Join(l.Addrs(), "  ") }

func indent(text string) {
	for line := range strings.Lines(text) {
		fmt.Printf("   %s\n", strings.TrimRight(line, " \n"))
	}
}
