package clients_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/test/pods"
)

// read is a list of testdata/lists, which has those that the projects of these names
// write by default or document, as a runtime takes it from a file of its own.
func read(name string) string {
	text, err := os.ReadFile(filepath.Join("testdata/lists", name+".json"))
	if err != nil {
		panic(err) // where the table is made, nothing can fail
	}
	return string(text)
}

// asList is a configuration as runtimes have it, who know only lists.
func asList(conf string) string {
	var file map[string]any
	Expect(json.Unmarshal([]byte(conf), &file)).To(Succeed(), conf)
	if file["plugins"] != nil {
		return conf
	}
	return plugintest.Text(map[string]any{"name": file["name"], "cniVersion": file["cniVersion"],
		"plugins": []any{file}})
}

// kubernetesList is a node's network, for pods with annotations of bandwidth.
func kubernetesList(main string, more ...string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "cniVersions": ["0.4.0", "1.0.0", "1.1.0"], "name": "k8s", "plugins": [
  {%s, "ipMasq": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
  {"type": "bandwidth", "capabilities": {"bandwidth": true}}%s]}`, main, strings.Join(more, ""))
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
	warnings  []string // that are due
	isolated  bool     // containers do not reach each other
	collects  bool     // the runtime negotiates 1.1.0, which has GC
	onHost    string   // a regular expression: what tc and nft list on the host
	inPod     string   // what "ip rule" lists in the first pod
	tap       bool     // tc-redirect-tap is ours, and the traffic its virtual machine's
}

func (u userLists) has(text string) bool { return strings.Contains(u.conflists[0], text) }

// expectValid has each of our plugins find nothing wrong in the lists, and in what IPAM plugins are given.
func (u userLists) expectValid(d *node) {
	var warnings []string
	for _, conflist := range u.conflists {
		concerned := false
		for _, name := range nstest.Plugins() {
			if !strings.Contains(conflist, fmt.Sprintf("%q", name)) {
				continue
			}
			out := d.Run(nstest.Program{Path: nstest.Build(name), Args: []string{"--check-config"}, Stdin: conflist})
			Expect(out.Exit).To(BeElementOf(0, 3), "%s: %s%s%s", name, out.Stdout, out.Stderr, conflist)
			concerned = concerned || out.Exit == 0
			for line := range strings.Lines(out.Stdout) {
				if strings.HasPrefix(line, "warning:") {
					warnings = append(warnings, strings.TrimSpace(line))
				}
			}
		}
		Expect(concerned).To(Equal(!strings.Contains(conflist, `"delegates"`)), conflist) // multus checks its own
	}
	Expect(warnings).To(Equal(u.warnings))
}

// run has libcni do the verb for all pods, in one network after the other. It returns the addresses that they have in
// each.
func (u userLists) run(d *node, verb string, many ...pod) (addrs []map[string][]string) {
	GinkgoHelper()
	for i, conflist := range u.conflists {
		d.configure(asList(conflist))
		var here []pod
		for _, p := range many {
			p.IfName = []string{"eth0", "net1"}[i]
			here = append(here, p)
		}
		addrs = append(addrs, d.must(verb, here...).Addrs)
	}
	return addrs
}

// prepare makes what is there on such a node before the first pod.
func (u userLists) prepare(d *node) {
	self := nstest.Must(os.Executable())
	for name := range standIns {
		if u.tap && name == "tc-redirect-tap" {
			continue
		}
		path := filepath.Join(d.Dir, name)
		Expect(os.RemoveAll(path)).To(Succeed())
		Expect(os.Symlink(self, path)).To(Succeed())
	}
	if u.has("KUBE-MARK-MASQ") {
		d.Cmd("iptables", "-t", "nat", "-N", "KUBE-MARK-MASQ")
		d.Cmd("ip6tables", "-t", "nat", "-N", "KUBE-MARK-MASQ")
	}
	if u.has("NOMAD-ADMIN") {
		d.Cmd("iptables", "-N", "NOMAD-ADMIN")
	}
}

// expectTraffic has the client reach the server, and the outside, where the networks give
// it that, and the server's host port be reached from outside.
func (u userLists) expectTraffic(outside *nstest.Host, client pods.Pod, addrs []map[string][]string) {
	limit := map[bool]string{true: "-w1", false: "-w40"}[u.isolated]
	for _, of := range addrs {
		for i, server := range of["server"] {
			ping := client.Run(nstest.Program{Path: "ping", Args: []string{"-nc1", limit,
				"-I", of["client"][i], server}}) // what has no source leaves by eth0, says sbr
			Expect(ping.Exit == 0).To(Equal(!u.isolated), "%s%s", ping.Stdout, ping.Stderr)
		}
	}
	for _, server := range addrs[0]["server"] {
		host, there := pods.HostAddr, "192.0.2.2"
		if strings.Contains(server, ":") {
			host, there = pods.HostAddr6, "2001:db8::2"
		}
		if u.has(`"portMappings": true`) {
			ask := func() (string, error) { return outside.Ask("tcp", net.JoinHostPort(host, "8081")) }
			Eventually(ask).Should(HavePrefix(net.JoinHostPort(there, "")))
		}
		if u.has(`"ipMasq": true`) && !u.has("tc-redirect-tap") { // whose machine has the default route
			at := outside.Serve("tcp", net.JoinHostPort(there, "0"))
			ask := func() (string, error) { return client.Ask("tcp", at) }
			Eventually(ask).Should(HavePrefix(net.JoinHostPort(host, "")))
		}
	}
}

// again is an entry whose plugins and keys another entry also has, which quick runs leave out.
func again(name string, u userLists, needs ...any) TableEntry {
	labels := Label("slow")
	if len(needs) > 0 {
		labels = Label("slow", "kernel")
	}
	return Entry(name, append([]any{labels, u}, needs...)...)
}

// listed is an entry, labeled when some kernels lack what it needs.
func listed(name string, u userLists, needs ...any) TableEntry {
	if len(needs) == 0 {
		return Entry(name, u)
	}
	return Entry(name, append([]any{Label("kernel"), u}, needs...)...)
}

var _ = DescribeTable("lists as users have them run on our plugins, and leave nothing", Label("lists"), func(
	u userLists, needs ...string,
) {
	nstest.Need(needs...)
	d := newNode("libcni", pods.Network{})
	u.expectValid(d)
	u.prepare(d)
	resolvConf := filepath.Join(GinkgoT().TempDir(), "resolv.conf")
	Expect(os.WriteFile(resolvConf, []byte("nameserver 192.0.2.2\n"), 0o644)).To(Succeed())
	for i := range u.conflists { // the machine's own may be anything
		u.conflists[i] = strings.ReplaceAll(u.conflists[i], "/etc/resolv.conf", resolvConf)
	}
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
	checked := !u.has(`"cniVersion": "0.3`) // which has no CHECK
	if checked {
		u.run(d, "check", all[:2]...)
	}
	client := pods.At(all[0].Netns)
	pods.At(all[1].Netns).Serve()
	if !u.tap {
		u.expectTraffic(outside, client, addrs)
	}
	Expect(d.Cmd("sh", "-c", "tc qdisc; nft list ruleset")).To(MatchRegexp(u.onHost))
	Expect(client.Cmd("ip", "rule")).To(ContainSubstring(u.inPod))

	settled := d.Snapshot()
	u.run(d, "add", all[2])
	if u.collects { // else libcni's GC is DEL of what it remembers
		d.Cmd("sh", "-c", "rm /var/lib/cni/results/*-lost-*")
	}
	u.run(d, "gc", all[:2]...)
	Expect(d.Snapshot()).To(Equal(settled))
	if checked {
		u.run(d, "check", all[:2]...)
	}
	u.run(d, "del", all[:2]...)
	pods.ExpectNothingLeft(d.Host)
	Expect(d.Cmd("find", "/run", "/var/lib", "-type", "f", "-name", "[0-9]*[.:]*")).To(BeEmpty(), "addresses lent")
	Expect(d.Snapshot()).To(Equal(empty))
},
	listed("podman's default", userLists{conflists: []string{read("podman")}, onHost: `table inet hawser`}),
	listed("nerdctl's default", userLists{conflists: []string{read("nerdctl")}, onHost: `"nerdctl0"`}),
	listed("nerdctl's with icc=false", userLists{conflists: []string{read("nerdctl-no-icc")}, isolated: true}),
	again("nerdctl's with ip-range", userLists{conflists: []string{read("nerdctl-ip-range")},
		warnings: []string{"warning: plugins[0].ipam.ranges[0][0].ipRange: is unknown and ignored"}}),
	again("Kubernetes' with bridge and bandwidth", userLists{conflists: []string{kubernetesList(kubernetesBridge)},
		collects: true, onHost: `tbf .*rate 10Mbit`}, "tbf", "ifb"),
	listed("Kubernetes' with ptp and bandwidth", userLists{conflists: []string{kubernetesList(`"type": "ptp"`)},
		collects: true, onHost: `tbf .*rate 10Mbit`}, "tbf", "ifb"),
	Entry("Kubernetes' with ptp of netkit, bandwidth and firewall", Label("kernel", "netkit"), userLists{
		conflists: []string{kubernetesList(`"type": "ptp", "deviceType": "netkit"`, `, {"type": "firewall"}`)},
		collects:  true, onHost: `tbf .*rate 10Mbit`}, "netkit", "tbf", "ifb"),
	again("multus' pair, net1 with static addresses", userLists{conflists: []string{kubernetesList(kubernetesBridge),
		multusList(`"capabilities": {"ips": true}, "ipam": {"type": "static"}`)}, collects: true,
		inPod: "from 10.10.0.2 lookup 100"}, "tbf", "ifb"),
	listed("multus' pair, net1 with host-local", userLists{conflists: []string{kubernetesList(kubernetesBridge),
		multusList(`"isGateway": true, "ipam": {"type": "host-local", "subnet": "10.10.0.0/24"}`)}, collects: true,
		inPod: "from 10.10.0."}, "tbf", "ifb"),
	listed("multus' delegates", userLists{conflists: []string{read("multus")}}),
	again("k3s'", userLists{conflists: []string{read("k3s")}, onHost: `tbf .*rate 10Mbit`}, "tbf", "ifb"),
	listed("kube-flannel's", userLists{conflists: []string{read("kube-flannel")}}),
	again("kind's, IPv4", userLists{conflists: []string{read("kind-ipv4")}}),
	again("kind's, IPv6", userLists{conflists: []string{read("kind-ipv6")}}),
	listed("kind's, both families", userLists{conflists: []string{read("kind-dual")}}),
	listed("GKE's", userLists{conflists: []string{read("gke")}}),
	again("AKS' kubenet", userLists{conflists: []string{read("aks-kubenet")},
		warnings: []string{"warning: plugins[0].addIf: is unknown and ignored"}}, "iptables"),
	again("kubeadm's, of Kubernetes' page on CNI errors", userLists{conflists: []string{read("kubeadm")}}, "iptables"),
	listed("containerd's", userLists{conflists: []string{read("containerd")}}),
	again("containerd's template", userLists{conflists: []string{read("containerd-template")}}),
	listed("CRI-O's", userLists{conflists: []string{read("cri-o")}}),
	listed("Nomad's", userLists{conflists: []string{read("nomad")}}, "iptables"),
	again("BuildKit's", userLists{conflists: []string{read("buildkit")}}),
	again("Firecracker's", userLists{conflists: []string{read("firecracker")}}),
	listed("Firecracker's, with our tc-redirect-tap", userLists{conflists: []string{read("firecracker")}, tap: true}),
	listed("Calico's", userLists{conflists: []string{read("calico")}, onHost: `tbf .*rate 10Mbit`}, "tbf", "ifb"),
	listed("AWS VPC CNI's", userLists{conflists: []string{read("aws-vpc-cni")}}),
	listed("Cilium's, chained", userLists{conflists: []string{read("cilium")}}),
	listed("Azure CNI's", userLists{conflists: []string{read("azure")}}),
)

// standIns are the plugins of other projects that the lists name. Each does for ours
// what its original does: the next one is given a result of the same shape, or called in
// the same way. This test binary is each of them, under its name.
var standIns = map[string]skel.CNIFuncs{
	"calico": pair("cali", `{"cniVersion": %[1]q, "dns": {}, "interfaces": [{"name": %[2]q}],
		"ips": [{"version": "4", "address": "%[3]s/32"}]}`),
	"aws-cni": pair("eni", `{"cniVersion": %[1]q, "dns": {},
		"interfaces": [{"name": %[2]q}, {"name": %[5]q, "sandbox": %[4]q}, {"name": "dummy0a1b2c3d4e5", "mac": "0",
			"sandbox": "0"}],
		"ips": [{"version": "4", "interface": 1, "address": "%[3]s/32"}]}`),
	"cilium-cni": pair("lxc", `{"cniVersion": %[1]q, "dns": {},
		"interfaces": [{"name": %[2]q, "mac": "ee:ee:ee:ee:ee:ee"}, {"name": %[5]q, "sandbox": %[4]q}],
		"ips": [{"version": "4", "interface": 1, "address": "%[3]s/32", "gateway": "10.9.0.1"}],
		"routes": [{"dst": "10.9.0.1/32"}, {"dst": "0.0.0.0/0", "gw": "10.9.0.1"}]}`),
	"azure-vnet": pair("azv", `{"cniVersion": %[1]q, "dns": {}, "interfaces": [{"name": %[5]q}],
		"ips": [{"version": "4", "address": "%[3]s/16", "gateway": "10.9.0.1"}],
		"routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.1"}]}`),
	"egress-cni":      {Add: func(args *skel.CmdArgs) error { return passOn(args, func(map[string]any) {}) }},
	"tc-redirect-tap": {Add: func(args *skel.CmdArgs) error { return passOn(args, addMachine(args)) }},
	"flannel": {
		Add: func(args *skel.CmdArgs) error {
			plugin, conf := flannel(args)
			res, err := invoke.DelegateAdd(context.Background(), plugin, conf, nil)
			if err != nil {
				return err
			}
			return res.Print()
		},
		Del: func(args *skel.CmdArgs) error {
			plugin, conf := flannel(args)
			return invoke.DelegateDel(context.Background(), plugin, conf, nil)
		},
	},
	"multus": {Add: multus("add"), Del: multus("del")},
}

// standIn is the process's main function when it is called by the name of one.
func standIn() (was bool) {
	funcs, ok := standIns[filepath.Base(os.Args[0])]
	if !ok {
		return false
	}
	nothing := func(*skel.CmdArgs) error { return nil }
	if funcs.Del == nil {
		funcs.Del = nothing
	}
	funcs.Check, funcs.GC, funcs.Status = nothing, nothing, nothing
	skel.PluginMainFuncs(funcs, version.All, "a stand-in")
	return true
}

// pair makes a veth pair routed as Calico's: a /32 in the pod, whose gateway is on no
// network. Its result has the version, the host end's name, the address, the namespace and the interface.
func pair(prefix, result string) skel.CNIFuncs {
	host := func(args *skel.CmdArgs) string { return prefix + args.ContainerID }
	return skel.CNIFuncs{
		Add: func(args *skel.CmdArgs) error {
			addr := fmt.Sprintf("10.9.0.%d", args.ContainerID[0])
			script := fmt.Sprintf(`set -e
				ip link add %[1]s address ee:ee:ee:ee:ee:ee type veth peer name %[2]s netns %[3]s
				ip link set %[1]s up
				ip route add %[4]s/32 dev %[1]s
				echo 1 >/proc/sys/net/ipv4/ip_forward
				nsenter --net=%[3]s ip -batch - <<-END
				addr add %[4]s/32 dev %[2]s
				link set %[2]s up
				neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev %[2]s
				route add 169.254.1.1 dev %[2]s scope link
				route add default via 169.254.1.1 dev %[2]s
				END
				`, host(args), args.IfName, args.Netns, addr)
			if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			var conf types.NetConf
			if err := json.Unmarshal(args.StdinData, &conf); err != nil {
				return err
			}
			_, err := fmt.Printf(result, conf.CNIVersion, host(args), addr, args.Netns, args.IfName)
			return err
		},
		Del: func(args *skel.CmdArgs) error {
			_ = exec.Command("ip", "link", "del", host(args)).Run() // it may be gone
			return nil
		},
	}
}

func passOn(args *skel.CmdArgs, change func(result map[string]any)) error {
	var conf struct{ PrevResult map[string]any }
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return err
	}
	change(conf.PrevResult)
	return json.NewEncoder(os.Stdout).Encode(conf.PrevResult)
}

// addMachine adds what tc-redirect-tap does: the tap device, and the interface of the virtual
// machine with the addresses of the container's.
func addMachine(args *skel.CmdArgs) func(map[string]any) {
	return func(result map[string]any) {
		all := result["interfaces"].([]any)
		mac := "02:00:00:00:00:11"
		result["interfaces"] = append(all, map[string]any{"name": "tap0", "mac": mac, "sandbox": args.Netns},
			map[string]any{"name": args.IfName, "mac": mac, "sandbox": args.ContainerID})
		for _, ip := range result["ips"].([]any) {
			machine := map[string]any{"interface": len(all) + 1}
			for k, v := range ip.(map[string]any) {
				if k != "interface" {
					machine[k] = v
				}
			}
			result["ips"] = append(result["ips"].([]any), machine)
		}
	}
}

// flannel completes its delegate from the node's subnet, as flannel does.
func flannel(args *skel.CmdArgs) (plugin string, conf []byte) {
	var own struct {
		CNIVersion, Name string
		Delegate         map[string]any
		PrevResult       any
	}
	if err := json.Unmarshal(args.StdinData, &own); err != nil {
		panic(err)
	}
	d := own.Delegate
	for key, value := range map[string]any{"cniVersion": own.CNIVersion, "name": own.Name, "type": "bridge",
		"ipMasq": false, "mtu": 1450, "isGateway": true, "ipam": map[string]any{"type": "host-local",
			"ranges": [][]any{{map[string]any{"subnet": "10.42.0.0/24"}}},
			"routes": []any{map[string]any{"dst": "10.42.0.0/16"}}}} {
		if _, has := d[key]; !has {
			d[key] = value
		}
	}
	if own.PrevResult != nil {
		d["prevResult"] = own.PrevResult
	}
	conf, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	return d["type"].(string), conf
}

// multus calls its delegates as a runtime does.
func multus(verb string) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		var conf struct {
			Delegates     []json.RawMessage
			RuntimeConfig map[string]any
		}
		if err := json.Unmarshal(args.StdinData, &conf); err != nil {
			return err
		}
		c := libcni.NewCNIConfigWithCacheDir(strings.Split(args.Path, ":"), "/var/lib/cni/multus", nil)
		for i, d := range conf.Delegates {
			list, err := libcni.NetworkConfFromBytes(d)
			if err != nil {
				return err
			}
			rt := &libcni.RuntimeConf{ContainerID: args.ContainerID, NetNS: args.Netns, IfName: args.IfName,
				CapabilityArgs: conf.RuntimeConfig}
			if verb == "del" {
				if err := c.DelNetworkList(context.Background(), list, rt); err != nil {
					return err
				}
				continue
			}
			res, err := c.AddNetworkList(context.Background(), list, rt)
			if err != nil {
				return err
			}
			if i == 0 {
				defer func() { _ = res.Print() }()
			}
		}
		return nil
	}
}
