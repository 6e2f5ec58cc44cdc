package demo_test

import (
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

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
