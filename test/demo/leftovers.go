package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// state are the commands whose output must be what it was.
var state = [][]string{
	{"ip", "-br", "link"},
	{"ip", "-br", "addr"},
	{"ip", "-4", "route", "show", "table", "all"},
	{"ip", "-6", "route", "show", "table", "all"},
	{"ip", "rule"},
	{"ip", "netns"},
	{"nft", "-s", "list", "ruleset"},
	{"sysctl", "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"},
	{"find", "/run", "/var/lib", "-not", "-path", "/run/netns/*"},
}

func snapshot() ([]string, error) {
	var all []string
	for _, c := range state {
		out, err := command(c[0], c[1:]...)
		if err != nil {
			return nil, err
		}
		all = append(all, lines(out)...)
	}
	return all, nil
}

func lines(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, " \n"); line != "" {
			list = append(list, line)
		}
	}
	return list
}

// nothingLeft shows what differs from before, fails when any of it belongs to one
// of the containers, takes away what the next container would share, and fails
// when the host is then not what it was.
func nothingLeft(before []string, n *network) error {
	title("what is left: only what the next container would share")
	after, err := snapshot()
	if err != nil {
		return err
	}
	for _, line := range diff(before, after) {
		if telling(line) {
			fmt.Println("   " + line)
		}
	}
	traces, err := traces(n)
	if err != nil {
		return err
	}
	if len(traces) > 0 {
		return fmt.Errorf("left of the containers: %s", strings.Join(traces, "; "))
	}
	title("without that: before and after compared")
	drop := dropShared
	if n.hasFirewall() {
		drop += dropForwardRules
	}
	if _, err := command("sh", "-euc", drop); err != nil {
		return err
	}
	if after, err = snapshot(); err != nil {
		return err
	}
	if lines := diff(before, after); len(lines) > 0 {
		return fmt.Errorf("the host is not what it was:\n%s", strings.Join(lines, "\n"))
	}
	fmt.Printf("   no difference in %d lines of state\n", len(before))
	return nil
}

// dropShared is what an administrator would do to give up the network.
const dropShared = `
ip link del cni0
nft delete table inet hawser 2>/dev/null || nft flush ruleset
sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0
rm -rf /var/lib/cni/networks /var/lib/cni/results /run/hawser /run/cni /run/xtables.lock
`

// dropForwardRules leaves the host the policies of its forward chains.
const dropForwardRules = `
for iptables in iptables ip6tables; do
	$iptables -F
	$iptables -X
done
` + forwardDrop + `
rm -f /run/xtables.lock
`

// traces lists everything that names a container, its addresses on the host or a
// port that was its.
func traces(n *network) ([]string, error) {
	var found []string
	for _, c := range n.containers {
		out, err := command("sh", "-c",
			"grep -rlsF -e "+c.id+" /run /var/lib; ls -R /run /var/lib | grep -F -e "+c.id+"; true")
		if err != nil {
			return nil, err
		}
		rules, err := command("nft", "list", "ruleset")
		if err != nil {
			return nil, err
		}
		for _, word := range []string{c.id, c.addrs[0].String() + " ", c.addrs[1].String() + " "} {
			if strings.Contains(rules, word) {
				out += "a rule with " + word + "\n"
			}
		}
		found = append(found, lines(out)...)
	}
	ports, err := command("ip", "-br", "link", "show", "master", bridge)
	if err != nil {
		return nil, err
	}
	found = append(found, lines(ports)...)
	if _, err := os.Stat(cacheDir + "/results"); err == nil {
		cached, err := os.ReadDir(cacheDir + "/results")
		if err != nil {
			return nil, err
		}
		for _, e := range cached {
			found = append(found, e.Name())
		}
	}
	return found, nil
}

// diff returns the lines that went, and those that came.
func diff(before, after []string) (lines []string) {
	for _, line := range before {
		if !slices.Contains(after, line) {
			lines = append(lines, "- "+line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			lines = append(lines, "+ "+line)
		}
	}
	return lines
}

// telling is false of what follows from other lines: the routes that the kernel
// makes of an address, and what is inside an nftables object.
func telling(line string) bool {
	for _, prefix := range []string{"+ \t\t", "+ \t}", "+ \tcomment", "+ }", "+ anycast", "+ local", "+ broadcast",
		"+ multicast", "+ fe80"} {
		if strings.HasPrefix(line, prefix) {
			return false
		}
	}
	return true
}
