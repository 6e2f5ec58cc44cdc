package main

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestFirewall(t *testing.T) { nstest.RunSpecs(t, "plugins/meta/firewall") }

// world is a host that forwards, with bridges, containers and a machine outside.
type world struct {
	*World
	out *nstest.Host // 192.0.2.2 and 2001:db8::2; the host has .1 and ::1
}

func newWorld() *world {
	GinkgoHelper()
	nstest.Need("nft")
	w := &world{World: NewWorld(plugin())}
	w.out = w.Router()
	return w
}

func (w *world) bridge(n int) {
	GinkgoHelper()
	w.Bridge(n)
}

// container is one of network n, and what the plugin before says of it.
type container struct {
	*nstest.Host
	w       *world
	hostEnd string
	addrs   []string // of IPv4 and IPv6, without their prefixes
	call    Call
	prev    Object
}

// container makes one with address number i, on bridge n where there is one.
func (w *world) container(n, i int) *container {
	GinkgoHelper()
	c := &container{Host: nstest.NewNetns(), w: w}
	hostEnd, ips := w.Join(c.Host, "eth0", n, i)
	c.hostEnd, c.addrs = hostEnd, []string{Addr(ips[0]), Addr(ips[1])}
	c.call = Call{ID: fmt.Sprintf("c%d-%d", n, i), Netns: c.Path}
	bridge, network := fmt.Sprintf("br%d", n), fmt.Sprintf("net%d", n)
	c.prev = Object{"cniVersion": "1.1.0",
		"interfaces": []Object{{"name": bridge}, {"name": c.hostEnd}, {"name": "eth0", "sandbox": c.Path}},
		"ips":        []Object{{"address": ips[0], "interface": 2}, {"address": ips[1], "interface": 2}}}
	c.call.Conf = Object{"cniVersion": "1.1.0", "name": network, "type": "firewall", "prevResult": c.prev}
	return c
}

// as is a call about the container, with more keys; a nil value takes one away.
func (c *container) as(command string, more ...Object) Call {
	call := c.call
	call.Command = command
	conf := Merge(append([]Object{c.call.Conf.(Object)}, more...)...)
	for k, v := range conf {
		if v == nil {
			delete(conf, k)
		}
	}
	call.Conf = conf
	return call
}

func (c *container) add(more ...Object) {
	GinkgoHelper()
	c.w.Add(c.as("ADD", more...))
}

func (c *container) del(more ...Object) {
	GinkgoHelper()
	c.w.Succeeds(c.as("DEL", more...))
}

func (c *container) check(more ...Object) {
	GinkgoHelper()
	a := c.w.Call(c.as("CHECK", more...))
	Expect(a.Code).To(BeZero(), a.Stdout)
}

// drifts is what CHECK finds.
func (c *container) drifts(more ...Object) string {
	GinkgoHelper()
	return c.w.Fails(c.as("CHECK", more...), 101)
}

// gc is a GC of network n, of which these containers are valid.
func (w *world) gc(n int, valid ...*container) {
	GinkgoHelper()
	refs := []Object{}
	for _, c := range valid {
		refs = append(refs, Object{"containerID": c.call.ID, "ifname": "eth0"})
	}
	w.Succeeds(Call{Command: "GC", Conf: Object{"cniVersion": "1.1.0", "name": fmt.Sprintf("net%d", n),
		"type": "firewall", "cni.dev/valid-attachments": refs}})
}

// useVariant chooses among the programs of iptables.
var useVariant = nstest.UseVariant

// kind is a backend: what a configuration says, and which iptables there is.
type kind struct {
	name    string
	config  Object
	variant string
}

func kinds() []kind {
	return []kind{
		{"nftables", Object{}, "nft"},
		{"nftables beside iptables-legacy", Object{}, "legacy"},
		{"iptables-nft", Object{"backend": "iptables"}, "nft"},
		{"iptables-legacy", Object{"backend": "iptables"}, "legacy"},
	}
}

// eachKind makes the specs for each backend.
func eachKind(specs func(k kind)) {
	for _, k := range kinds() {
		Context("on "+k.name, func() {
			BeforeEach(func() { useVariant(k.variant) })
			specs(k)
		})
	}
}

// forward makes chain FORWARD of both families, with a policy.
func (w *world) forward(policy string) {
	GinkgoHelper()
	w.Cmd("iptables", "-P", "FORWARD", policy)
	w.Cmd("ip6tables", "-P", "FORWARD", policy)
}

// filter is both families' filter table as iptables says it.
func (w *world) filter() string {
	GinkgoHelper()
	return w.Cmd("iptables", "-S") + w.Cmd("ip6tables", "-S")
}

// untouched is all that a call which fails, or has nothing to do, must leave as it is.
func (w *world) untouched() string {
	GinkgoHelper()
	return w.Snapshot("nftables", "iptables-legacy") + w.Files("/run/hawser")
}

// reaches says whether a TCP connection from there is answered.
func reaches(from *nstest.Host, to string, wanted bool) bool {
	GinkgoHelper()
	limit := nstest.Patience(nstest.Hang)
	if !wanted {
		limit = nstest.Patience(100 * time.Millisecond)
	}
	var err error
	from.Do(func() {
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", to, limit); err == nil {
			_ = conn.SetDeadline(time.Now().Add(limit))
			_, err = io.ReadAll(conn)
			_ = conn.Close()
		}
	})
	return err == nil
}

// pings says whether an echo request is answered: a wanted one may be lost while
// neighbours find each other, and is sent again.
func pings(from *nstest.Host, to string, wanted bool) bool {
	GinkgoHelper()
	if wanted {
		return Ping(from, to)
	}
	limit := nstest.Patience(100 * time.Millisecond)
	return from.Run(nstest.Program{Path: "ping", Args: []string{"-c1", "-n", "-W", fmt.Sprintf("%.1f", limit.Seconds()),
		to}}).Exit == 0
}
