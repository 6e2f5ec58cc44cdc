package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
)

// link is what ip -j addr says about an interface.
type link struct {
	Index  int    `json:"ifindex"`
	Peer   int    `json:"link_index"`
	Name   string `json:"ifname"`
	MAC    string `json:"address"`
	Alias  string `json:"ifalias"`
	Master string `json:"master"`
	Addrs  []struct {
		Local     string `json:"local"`
		PrefixLen int    `json:"prefixlen"`
		Scope     string `json:"scope"`
	} `json:"addr_info"`
}

func (l link) addresses() string {
	var words []string
	for _, a := range l.Addrs {
		if a.Scope == "global" {
			words = append(words, fmt.Sprintf("%s/%d", a.Local, a.PrefixLen))
		}
	}
	return strings.Join(words, "  ")
}

// links decodes what ip prints with these arguments.
func links(args ...string) ([]link, error) {
	out, err := command("ip", args...)
	if err != nil {
		return nil, err
	}
	var list []link
	return list, json.Unmarshal([]byte(out), &list)
}

func find(list []link, match func(link) bool) link {
	for _, l := range list {
		if match(l) {
			return l
		}
	}
	return link{Name: "?"}
}

func named(name string) func(link) bool { return func(l link) bool { return l.Name == name } }

// draw shows the network as the kernel tells it, through ip and nft.
func draw(n *network) error {
	title("the network")
	host, err := links("-j", "addr")
	if err != nil {
		return err
	}
	outside, err := links("-n", "outside", "-j", "addr")
	if err != nil {
		return err
	}
	br, ext := find(host, named(bridge)), find(host, named("ext"))
	fmt.Printf("   outside  eth0   %s\n", find(outside, named("eth0")).addresses())
	fmt.Println("     │")
	fmt.Printf("   ┌─┴─ host ───────────────────────────────────────────────────────────\n")
	fmt.Printf("   │ ext           %s\n", ext.addresses())
	fmt.Printf("   │ %-5s bridge  %s   %s\n", br.Name, br.addresses(), br.MAC)
	for i, c := range n.containers {
		if err := drawPort(c, host, i == len(n.containers)-1); err != nil {
			return err
		}
	}
	fmt.Println("   └────────────────────────────────────────────────────────────────────")
	return drawTables(n)
}

func drawPort(c *container, host []link, last bool) error {
	inner, err := links("-n", c.name, "-j", "addr")
	if err != nil {
		return err
	}
	eth0 := find(inner, named("eth0"))
	port := find(host, func(l link) bool { return l.Index == eth0.Peer && l.Master == bridge })
	branch := "├"
	if last {
		branch = "└"
	}
	fmt.Printf("   │  %s─ %-13s ══ %-5s eth0  %s   %s\n", branch, port.Name, c.name, eth0.addresses(), eth0.MAC)
	owner, err := links("-j", "link", "show", "dev", port.Name)
	if err != nil {
		return err
	}
	if len(owner) == 1 && owner[0].Alias != "" {
		stem := "│"
		if last {
			stem = " "
		}
		fmt.Printf("   │  %s    owner %s\n", stem, owner[0].Alias)
	}
	return nil
}

// drawTables prints routes, NAT and firewall in the words of ip, iptables and nft.
func drawTables(n *network) error {
	for _, t := range []struct {
		what string
		args []string
	}{
		{"routes of the host", nil},
		{"routes of container " + n.containers[0].name, []string{"-n", n.containers[0].name}},
	} {
		title(t.what)
		for _, family := range []string{"-4", "-6"} {
			out, err := command("ip", append(t.args, family, "route")...)
			if err != nil {
				return err
			}
			indent(out)
		}
	}
	if n.hasFirewall() {
		title("the host's FORWARD chain")
		out, err := command("iptables", "-S")
		if err != nil {
			return err
		}
		indent(out)
	}
	title("NAT and firewall")
	// Other backends than ours have other tables.
	out, err := exec.Command("nft", "list", "table", "inet", "hawser").Output()
	if err != nil {
		if out, err = exec.Command("nft", "list", "ruleset").Output(); err != nil {
			return fmt.Errorf("nft list ruleset: %w", err)
		}
	}
	indent(string(out))
	return nil
}

func indent(text string) {
	for line := range strings.Lines(text) {
		fmt.Printf("   %s\n", strings.TrimRight(line, " \n"))
	}
}
