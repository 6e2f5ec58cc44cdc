package clients_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// podmanList is the network "podman" of podman 4's package.
const podmanList = `{"cniVersion": "0.4.0", "name": "podman", "plugins": [
  {"type": "bridge", "bridge": "cni-podman0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}],
    "ranges": [[{"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall"}, {"type": "tuning"}]}`

// nerdctlList is nerdctl's default network, whose policy is same-bridge; with icc=false it is isolated.
func nerdctlList(policy string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bridge", "nerdctlID": "17f29b073143", "nerdctlLabels": {},
 "plugins": [
  {"type": "bridge", "bridge": "nerdctl0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"ranges": [[{"gateway": "10.4.0.1", "subnet": "10.4.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
    "type": "host-local"}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "firewall", "ingressPolicy": %q}, {"type": "tuning"}]}`, policy)
}

// kubernetesList is a node's network, for pods with annotations of bandwidth.
func kubernetesList(main string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "cniVersions": ["0.4.0", "1.0.0", "1.1.0"], "name": "k8s", "plugins": [
  {%s, "ipMasq": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
  {"type": "bandwidth", "capabilities": {"bandwidth": true}}]}`, main)
}

const kubernetesBridge = `"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true`

// multusList is the network of net1, which multus adds to that of the node.
func multusList(keys string) string {
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "storage", "plugins": [
  {"type": "bridge", "bridge": "storage0", %s}, {"type": "sbr"}]}`, keys)
}

// kubelet sends the limits of a pod, and a burst of its own.
var kubelet = map[string]int{"ingressRate": 10_000_000, "ingressBurst": 2147483647,
	"egressRate": 20_000_000, "egressBurst": 2147483647}

// userLists are the networks of a container: of eth0, of net1.
type userLists struct {
	conflists []string
	isolated  bool   // containers do not reach each other
	collects  bool   // the runtime negotiates 1.1.0, which has GC
	onHost    string // "PROGRAM ARGUMENT": what it says of the last plugin's work
	inPod     string
}

// expectValid has each plugin of the lists, IPAM's too, find nothing wrong in them.
func (u userLists) expectValid(d *node) {
	GinkgoHelper()
	for _, conflist := range u.conflists {
		for _, name := range nstest.Plugins() {
			if !strings.Contains(conflist, fmt.Sprintf(`"type": %q`, name)) {
				continue
			}
			out := d.Run(nstest.Program{Path: nstest.Build(name), Args: []string{"--check-config"}, Stdin: conflist})
			Expect(out.Exit).To(BeZero(), "%s: %s%s%s", name, out.Stdout, out.Stderr, conflist)
			Expect(out.Stdout).NotTo(MatchRegexp(`(?m)^(error|warning):`), conflist)
		}
	}
}

// run has libcni obey for one network of the pods after the other, and returns the addresses in each.
func (u userLists) run(d *node, verb string, many ...pod) (addrs []map[string][]string) {
	GinkgoHelper()
	for i, conflist := range u.conflists {
		d.configure(conflist)
		var here []pod
		for _, p := range many {
			p.IfName = []string{"eth0", "net1"}[i]
			here = append(here, p)
		}
		addrs = append(addrs, d.must(order{Verbs: []string{verb}, Pods: here}).Addrs)
	}
	return addrs
}

var _ = DescribeTable("lists as users have them run on our plugins alone, and leave nothing", Label("kernel"), func(
	u userLists, needs ...string,
) {
	nstest.Need(needs...)
	d := newNode("libcni", pods.Network{})
	u.expectValid(d)
	outside := nstest.NewOutside(d.Host)
	var all []pod
	for i, id := range []string{"client", "server", "lost"} {
		p := newPod(id, port{int32(8080 + i), 80, "tcp", ""})
		p.More = map[string]any{"bandwidth": kubelet, "ips": []string{fmt.Sprintf("10.10.0.%d/24", i+2)}}
		all = append(all, p)
	}
	u.run(d, "add", all[0])
	u.run(d, "del", all[0])
	empty := d.Snapshot()

	addrs := u.run(d, "add", all[:2]...)
	u.run(d, "check", all[:2]...)
	client := pods.At(all[0].Netns)
	pods.At(all[1].Netns).Serve()
	limit := map[bool]string{true: "-w1", false: "-w40"}[u.isolated]
	for _, of := range addrs {
		ping := client.Run(nstest.Program{Path: "ping", Args: []string{"-nc1", limit,
			"-I", of["client"][0], of["server"][0]}}) // what has no source leaves by eth0, says sbr
		Expect(ping.Exit == 0).To(Equal(!u.isolated), "%s", ping.Stdout)
	}
	Expect(outside.Ask("tcp", pods.HostAddr+":8081")).To(HavePrefix("192.0.2.2:"))
	Expect(d.Cmd("sh", "-c", "tc qdisc; nft list ruleset")).To(MatchRegexp(u.onHost))
	Expect(client.Cmd("ip", "rule")).To(ContainSubstring(u.inPod))

	settled := d.Snapshot()
	u.run(d, "add", all[2])
	if u.collects { // else libcni's GC is DEL of what it remembers
		d.Cmd("sh", "-c", "rm /var/lib/cni/results/*-lost-*")
	}
	u.run(d, "gc", all[:2]...)
	Expect(d.Snapshot()).To(Equal(settled))
	u.run(d, "check", all[:2]...)
	u.run(d, "del", all[:2]...)
	pods.ExpectNothingLeft(d.Host)
	Expect(d.Snapshot()).To(Equal(empty))
},
	Entry("podman's default", userLists{conflists: []string{podmanList}, onHost: `table inet hawser`}),
	Entry("nerdctl's default", userLists{conflists: []string{nerdctlList("same-bridge")}, onHost: `"nerdctl0"`}),
	Entry("nerdctl's with icc=false", userLists{conflists: []string{nerdctlList("isolated")}, isolated: true}),
	Entry("Kubernetes' with bridge and bandwidth", userLists{conflists: []string{kubernetesList(kubernetesBridge)},
		collects: true, onHost: `tbf .*rate 10Mbit`}, "tbf", "ifb"),
	Entry("Kubernetes' with ptp and bandwidth", userLists{conflists: []string{kubernetesList(`"type": "ptp"`)},
		collects: true, onHost: `tbf .*rate 10Mbit`}, "tbf", "ifb"),
	Entry("multus' pair, net1 with static addresses", userLists{conflists: []string{kubernetesList(kubernetesBridge),
		multusList(`"capabilities": {"ips": true}, "ipam": {"type": "static"}`)}, collects: true,
		inPod: "from 10.10.0.2 lookup 100"}, "tbf", "ifb"),
	Entry("multus' pair, net1 with host-local", userLists{conflists: []string{kubernetesList(kubernetesBridge),
		multusList(`"isGateway": true, "ipam": {"type": "host-local", "subnet": "10.10.0.0/24"}`)}, collects: true,
		inPod: "from 10.10.0."}, "tbf", "ifb"),
)
