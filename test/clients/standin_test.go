package clients_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
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
