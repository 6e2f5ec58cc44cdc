package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

const (
	bridge   = "cni0"
	cacheDir = "/var/lib/cni"
)

// container is a network namespace and what ADD told about it.
type container struct {
	name  string
	id    string
	addrs []netip.Addr
}

// network is the conflist, the runtime's library and what is attached.
type network struct {
	cni        *libcni.CNIConfig
	list       *libcni.NetworkConfigList
	containers []*container
}

func load(plugins, conflist string) (*network, error) {
	data, err := os.ReadFile(conflist)
	if err != nil {
		return nil, err
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	n := &network{cni: libcni.NewCNIConfigWithCacheDir([]string{plugins}, cacheDir, nil), list: list}
	for i, name := range []string{"one", "two", "three"} {
		n.containers = append(n.containers, &container{name: name, id: fmt.Sprintf("demo-%x", 0xc0ffee0+i)})
	}
	return n, nil
}

// publicPort is the host's port that leads to the first container's.
const publicPort = 80

func runtimeConf(c *container) *libcni.RuntimeConf {
	rc := &libcni.RuntimeConf{ContainerID: c.id, NetNS: "/run/netns/" + c.name, IfName: "eth0"}
	if c.name == "one" {
		var mappings []map[string]any
		for _, proto := range []string{"tcp", "udp"} {
			mappings = append(mappings, map[string]any{"hostPort": publicPort, "containerPort": 8080,
				"protocol": proto})
		}
		rc.CapabilityArgs = map[string]any{"portMappings": mappings}
	}
	return rc
}

// attach adds the three containers as a runtime does.
func (n *network) attach(ctx context.Context) error {
	title("attach, through libcni")
	if n.hasGC() {
		if err := n.cni.GetStatusNetworkList(ctx, n.list); err != nil {
			return fmt.Errorf("STATUS: %w", err)
		}
		fmt.Println("   STATUS        ready")
	}
	for _, c := range n.containers {
		if err := n.add(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

func (n *network) add(ctx context.Context, c *container) error {
	if _, err := command("ip", "netns", "add", c.name); err != nil {
		return err
	}
	start := time.Now()
	result, err := n.cni.AddNetworkList(ctx, n.list, runtimeConf(c))
	if err != nil {
		return fmt.Errorf("ADD %s: %w", c.name, err)
	}
	took := time.Since(start)
	r, err := types100.GetResult(result)
	if err != nil {
		return err
	}
	c.addrs = nil
	for _, ip := range r.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		c.addrs = append(c.addrs, addr.Unmap())
	}
	if len(c.addrs) != 2 {
		return fmt.Errorf("ADD %s: addresses %v, want one of IPv4 and one of IPv6", c.name, c.addrs)
	}
	fmt.Printf("   ADD    %-6s eth0 %-12s %-14s %5.1f ms\n", c.name, c.addrs[0], c.addrs[1], ms(took))
	return nil
}

// tryWithoutFirewall shows what the host drops: it attaches the first container by
// the list without firewall, and takes it away again.
func (n *network) tryWithoutFirewall(ctx context.Context) error {
	if !n.hasFirewall() {
		return nil
	}
	title("the host's FORWARD chain drops: the network without the plugin firewall")
	list := *n.list
	list.Plugins = slices.DeleteFunc(slices.Clone(list.Plugins), isFirewall)
	one, rest := n.containers[0], &network{cni: n.cni, list: &list, containers: n.containers}
	if err := rest.add(ctx, one); err != nil {
		return err
	}
	if err := proveDropped(one); err != nil {
		return err
	}
	if err := rest.del(ctx, one, "in order"); err != nil {
		return err
	}
	return dropNamespace(one)
}

func (n *network) hasFirewall() bool { return slices.ContainsFunc(n.list.Plugins, isFirewall) }

func isFirewall(p *libcni.PluginConfig) bool { return p.Network.Type == "firewall" }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (n *network) check(ctx context.Context) error {
	title("CHECK")
	for _, c := range n.containers {
		if err := n.cni.CheckNetworkList(ctx, n.list, runtimeConf(c)); err != nil {
			return fmt.Errorf("CHECK %s: %w", c.name, err)
		}
		fmt.Printf("   CHECK  %-6s as ADD left it\n", c.name)
	}
	return nil
}

// detach takes the containers away in the three ways of real life.
func (n *network) detach(ctx context.Context) error {
	title("take it down")
	one, two, three := n.containers[0], n.containers[1], n.containers[2]
	if err := n.del(ctx, one, "in order"); err != nil {
		return err
	}
	if err := dropNamespace(one); err != nil {
		return err
	}
	if err := dropNamespace(two); err != nil {
		return err
	}
	if err := n.del(ctx, two, "after its namespace was gone"); err != nil {
		return err
	}
	if err := n.del(ctx, two, "once more"); err != nil {
		return err
	}
	if !n.hasGC() {
		if err := n.del(ctx, three, "in order"); err != nil {
			return err
		}
		return dropNamespace(three)
	}
	// A node that lost its power: the runtime's cache does not know the container.
	if err := os.RemoveAll(cacheDir + "/results"); err != nil {
		return err
	}
	if err := dropNamespace(three); err != nil {
		return err
	}
	if err := n.cni.GCNetworkList(ctx, n.list, &libcni.GCArgs{}); err != nil {
		return fmt.Errorf("GC: %w", err)
	}
	fmt.Printf("   GC     %-6s whose DEL never came\n", three.name)
	return nil
}

func (n *network) del(ctx context.Context, c *container, how string) error {
	start := time.Now()
	if err := n.cni.DelNetworkList(ctx, n.list, runtimeConf(c)); err != nil {
		return fmt.Errorf("DEL %s, %s: %w", c.name, how, err)
	}
	fmt.Printf("   DEL    %-6s %-42s %5.1f ms\n", c.name, how, ms(time.Since(start)))
	return nil
}

// hasGC: GC and STATUS came with version 1.1.0.
func (n *network) hasGC() bool { return n.list.CNIVersion == "1.1.0" }

func dropNamespace(c *container) error {
	_, err := command("ip", "netns", "del", c.name)
	return err
}
