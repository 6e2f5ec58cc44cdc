package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestPortmap(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/meta/portmap")
}

// object is a JSON object.
type object = map[string]any

// world is a host with networks, each a bridge with containers, and a machine
// outside.
type world struct {
	*nstest.Host
	out *nstest.Host // 192.0.2.2 and 2001:db8::2; the host has .1 and ::1
}

// newWorld makes the host and a machine one hop away, which knows the way to
// the containers.
func newWorld() *world {
	GinkgoHelper()
	nstest.Need("nft", "nft-inet-nat", "nft-fib")
	w := &world{Host: nstest.NewHost()}
	w.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	w.out = nstest.NewOutside(w.Host)
	w.out.IP("route add default via 192.0.2.1", "route add default via 2001:db8::1")
	w.SetSysctl("net/ipv4/ip_forward", "1")
	w.SetSysctl("net/ipv6/conf/all/forwarding", "1")
	// A refusal is an answer that must come each time.
	w.SetSysctl("net/ipv4/icmp_ratelimit", "0")
	w.SetSysctl("net/ipv6/icmp/ratelimit", "0")
	return w
}

// bridge makes network number n: br<n> with 10.<n>.0.1/24 and fd00:<n>::1/64.
func (w *world) bridge(n int) {
	GinkgoHelper()
	br := fmt.Sprintf("br%d", n)
	w.IP("link add "+br+" type bridge", fmt.Sprintf("addr add 10.%d.0.1/24 dev %s", n, br),
		fmt.Sprintf("addr add fd00:%d::1/64 dev %s nodad", n, br), "link set "+br+" up")
}

// container is a container of network n: its namespace, and what the plugin
// before portmap says of it.
type container struct {
	*nstest.Host
	w       *world
	network string
	id      string
	ifName  string
	hostEnd string
	ips     []string // with the lengths of their prefixes
}

// container makes one with address number i.
func (w *world) container(n, i int) *container {
	GinkgoHelper()
	c := &container{w: w, Host: nstest.NewNetns(), network: fmt.Sprintf("net%d", n), id: fmt.Sprintf("c%d-%d", n, i),
		ifName: "eth0"}
	c.join(n, i)
	return c
}

// second is another interface of the container, on network n.
func (c *container) second(ifName string, n, i int) *container {
	GinkgoHelper()
	s := &container{w: c.w, Host: c.Host, network: fmt.Sprintf("net%d", n), id: c.id, ifName: ifName}
	s.join(n, i)
	return s
}

func (c *container) join(n, i int) {
	GinkgoHelper()
	c.hostEnd = fmt.Sprintf("v%d-%d", n, i)
	c.ips = []string{fmt.Sprintf("10.%d.0.%d/24", n, i), fmt.Sprintf("fd00:%d::%x/64", n, i)}
	c.w.IP(fmt.Sprintf("link add %s type veth peer name %s netns %s", c.hostEnd, c.ifName, c.Name),
		fmt.Sprintf("link set %s master br%d up", c.hostEnd, n))
	lines := []string{"link set lo up", "link set " + c.ifName + " up"}
	for _, addr := range c.ips {
		lines = append(lines, "addr add "+addr+" dev "+c.ifName+map[bool]string{true: " nodad"}[strings.Contains(addr,
			":")])
	}
	if c.ifName == "eth0" {
		lines = append(lines, fmt.Sprintf("route add default via 10.%d.0.1", n),
			fmt.Sprintf("route add default via fd00:%d::1", n))
	}
	c.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	c.IP(lines...)
}

// addr is the container's address of a family.
func (c *container) addr(v6 bool) string {
	for _, ip := range c.ips {
		if strings.Contains(ip, ":") == v6 {
			addr, _, _ := strings.Cut(ip, "/")
			return addr
		}
	}
	return ""
}

// vanish ends the container without DEL: its namespace and so its pair go.
func (c *container) vanish() {
	GinkgoHelper()
	c.Unpin()
	// The kernel may have been quicker.
	c.w.Run(nstest.Program{Path: "ip", Args: []string{"link", "del", c.hostEnd}})
	Expect(c.w.Run(nstest.Program{Path: "ip", Args: []string{"link", "show", c.hostEnd}}).Exit).NotTo(BeZero())
}

// conf is a configuration; keys are added, or taken away by nil.
func conf(more ...object) object {
	c := object{"cniVersion": "1.1.0", "name": "net1", "type": "portmap"}
	for _, m := range more {
		maps.Copy(c, m)
	}
	for k, v := range c {
		if v == nil {
			delete(c, k)
		}
	}
	return c
}

// ports is a runtimeConfig: "8080:80", "8080:80/udp", "192.0.2.1:8080:80",
// "[::]:8080:80".
func ports(list ...string) object {
	var out []object
	for _, text := range list {
		text, proto, _ := strings.Cut(text, "/")
		if proto == "" {
			proto = "tcp"
		}
		cut := strings.LastIndex(text, ":")
		m := object{"containerPort": json.Number(text[cut+1:]), "protocol": proto}
		text = text[:cut]
		if cut = strings.LastIndex(text, ":"); cut >= 0 {
			m["hostIP"] = strings.Trim(text[:cut], "[]")
		}
		m["hostPort"] = json.Number(text[cut+1:])
		out = append(out, m)
	}
	return object{"runtimeConfig": object{"portMappings": out}}
}

// prevResult is what the plugin before said.
func (c *container) prevResult() object {
	var ips []object
	for _, ip := range c.ips {
		ips = append(ips, object{"address": ip, "interface": 1})
	}
	return object{"cniVersion": "1.1.0", "ips": ips,
		"interfaces": []object{{"name": c.hostEnd}, {"name": c.ifName, "sandbox": c.Path}}}
}

// outcome is what a call gave back.
type outcome struct {
	exit           int
	stdout, stderr string
	Code           uint
	Msg            string
}

func (o outcome) text() string { return fmt.Sprintf("exit %d %s %s", o.exit, o.stdout, o.stderr) }

// call runs the plugin. A nil prevResult in the configuration takes it away.
func (c *container) call(command string, more ...object) outcome {
	GinkgoHelper()
	all := append([]object{{"name": c.network, "prevResult": c.prevResult()}}, more...)
	return c.w.run(command, conf(all...), "CNI_CONTAINERID="+c.id, "CNI_NETNS="+c.Path, "CNI_IFNAME="+c.ifName)
}

func (w *world) run(command string, config object, env ...string) outcome {
	GinkgoHelper()
	in, err := json.Marshal(config)
	Expect(err).NotTo(HaveOccurred())
	var o outcome
	w.Do(func() { o = serve(in, append(env, "CNI_COMMAND="+command, "CNI_PATH=/nowhere")) })
	return o
}

// serve runs the plugin on the calling thread.
func serve(in []byte, env []string) outcome {
	var out, errs bytes.Buffer
	o := outcome{exit: skel.Run(context.Background(), plugin(), skel.Env{Vars: env,
		Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errs})}
	o.stdout, o.stderr = out.String(), errs.String()
	_ = json.Unmarshal(out.Bytes(), &o)
	return o
}

func (c *container) add(more ...object) {
	GinkgoHelper()
	o := c.call("ADD", more...)
	Expect(o.exit).To(BeZero(), o.text())
}

func (c *container) del(more ...object) {
	GinkgoHelper()
	o := c.call("DEL", more...)
	Expect(o.text()).To(Equal("exit 0  "))
}

func (c *container) check(more ...object) {
	GinkgoHelper()
	o := c.call("CHECK", more...)
	Expect(o.text()).To(Equal("exit 0  "))
}

// gc runs GC of a network with these attachments valid: "c1/eth0".
func (w *world) gc(network string, valid ...string) {
	GinkgoHelper()
	Expect(w.tryGC(network, valid...).text()).To(Equal("exit 0  "))
}

func (w *world) tryGC(network string, valid ...string) outcome {
	GinkgoHelper()
	refs := []object{}
	for _, v := range valid {
		id, ifName, _ := strings.Cut(v, "/")
		refs = append(refs, object{"containerID": id, "ifname": ifName})
	}
	return w.run("GC", conf(object{"name": network, "cni.dev/valid-attachments": refs}))
}

// useVariant chooses among the programs of iptables.
var useVariant = nstest.UseVariant

// kinds are the backends: what a configuration says, and which iptables there
// is.
type kind struct {
	name    string
	config  object
	variant string
}

var kinds = []kind{
	{"nftables", object{}, "nft"},
	{"iptables-nft", object{"backend": "iptables"}, "nft"},
	{"iptables-legacy", object{"backend": "iptables"}, "legacy"},
}

// rules is the state of the host that portmap may change, in no order: rules
// of others may have moved.
func (w *world) rules() string {
	GinkgoHelper()
	lines := strings.Split(w.Snapshot("nftables", "iptables-legacy"), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n") + w.Cmd("sh", "-c", "grep . /proc/sys/net/ipv4/conf/br*/route_localnet || true")
}

// natRules are both families' nat table as iptables says it.
func (w *world) natRules() string {
	GinkgoHelper()
	return w.Cmd("iptables", "-t", "nat", "-S") + w.Cmd("ip6tables", "-t", "nat", "-S")
}

// timeout is a context that ends.
func timeout(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// soon is how long to wait for what must not come.
func soon(ms int) time.Duration {
	return nstest.Patience(time.Duration(ms) * time.Millisecond)
}
