package tool

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

var _ = DescribeTable("advice is about the cause of a failure", Label("tool-why"), func(
	code uint, plugin, msg, says string,
) {
	said := advice(skel.Failure{Plugin: plugin, Code: code, Msg: msg}, "/etc/cni/net.d/10-pods.conflist")
	Expect(said).To(HaveSuffix(says))
	Expect(said).NotTo(MatchRegexp("FILE|OBJECT"))
},
	Entry("a full range", cni.CodeTryAgain, "host-local", "no IP addresses available in range set: 10.1.0.0/24",
		"release stale leases (hawser gc --yes), or add a range"),
	Entry("a lock", cni.CodeTryAgain, "host-local", "lock /var/lib/x: held by process 7 (host-local)",
		"wait until that process ends; the runtime tries again"),
	Entry("no DHCP server", cni.CodeTryAgain, "dhcp", "no more tries",
		"find out why no DHCP server answers: the VLAN, the server's log"),
	Entry("no DHCP daemon", cni.CodeTryAgain, "dhcp", "error dialing DHCP daemon: dial", "cni-dhcp.socket"),
	Entry("IPv6 that is off", cni.CodeConflict, "bridge", `bridge "cni0": gateway fd00::1/64: IPv6 is off on`,
		"enable IPv6 with the command in the message, also in /etc/sysctl.d"),
	Entry("an address of the host", cni.CodeConflict, "bridge", "address 10.88.0.2: the host has it",
		"exclude the host's address from the range (ipam.exclude)"),
	Entry("a neighbor's address", cni.CodeConflict, "ptp",
		"address 10.88.0.100/32: pod shop/web-0 has it, and the host would no longer reach that container",
		"release the name or address, or choose another one: hawser explain 10.88.0.100"),
	Entry("a neighbor's subnet", cni.CodeConflict, "ptp",
		"address 10.88.0.128/25: is in subnet 10.88.0.0/24 of pod shop/web-0, and the host would not reach",
		"write a subnet that no other network of the node uses"),
	Entry("a large subnet", cni.CodeConflict, "bridge",
		"gateway 16.0.0.1/4: the subnet has fewer than 7 bits, and takes packets of the host's default route; choose",
		"write a smaller subnet for the network"),
	Entry("the router's subnet", cni.CodeConflict, "bridge",
		"gateway 192.0.2.9/24: the host's own router 192.0.2.1 is in this subnet, and the host would no longer",
		"write a subnet that the node's network does not use"),
	Entry("a bridge's port", cni.CodeConflict, "macvlan",
		`master: "b0": the bridge connects a container by port "veth0", and the host would receive nothing from `+
			"it; use another mode", "write another mode than passthru, or another master"),
	Entry("a second macvlan", cni.CodeConflict, "macvlan",
		`master: "e0": refuses a macvlan of mode "passthru" (a passthru must be the only macvlan on its master): x`,
		"write another mode than passthru, or another master"),
	Entry("a policy", cni.CodeConflict, "firewall",
		`ingressPolicy: "same-bridge": bridge "b0" also connects pod shop/web-0, which the policy would restrict; use `+
			"another bridge", "write another bridge or another ingressPolicy"),
	Entry("an owner", cni.CodeConflict, "bridge", `bridge "cni0": the name is taken by an`,
		"release the name or address, or choose another one: hawser explain cni0"),
	Entry("an IPv6 address", cni.CodeConflict, "macvlan", "address fd00::2: another has it",
		": hawser explain fd00::2"),
	Entry("a requested address", cni.CodeConflict, "host-local", "ips: requested IP address 10.1.0.2 is not available",
		": hawser explain 10.1.0.2"),
	Entry("an owner that the host does not have", cni.CodeConflict, "vrf", `interface "eth0": has already a master set`,
		"release the name or address, or choose another one"),
	Entry("a value of the pod", cni.CodeConfig, "bridge", `runtimeConfig.ips[0]: "x" is not`,
		"the runtime sent the value: correct the pod's annotation or the command"),
	Entry("an argument of the pod", cni.CodeConfig, "static", `args.cni.ips[0]: "x" is not`,
		"the runtime sent the value: correct the pod's annotation or the command"),
	Entry("CNI_ARGS", cni.CodeEnvironment, "static", "CNI_ARGS IP: x", "correct the pod's annotation or the command"),
	Entry("a value of the list", cni.CodeConfig, "bridge", "mtu: 7 is not between",
		"correct the named key of the network list: hawser check /etc/cni/net.d/10-pods.conflist"),
	Entry("JSON", cni.CodeDecode, "bridge", "invalid character",
		"the network list is not valid JSON: hawser check /etc/cni/net.d/10-pods.conflist"),
	Entry("a host port", cni.CodePortTaken, "portmap", `host port 0.0.0.0:8080/tcp: held on 0.0.0.0 by`,
		"another container has the host port: hawser explain 8080/tcp"),
	Entry("a missing plugin", cni.CodeEnvironment, "bridge", `CNI_PATH: no plugin "x" in`,
		"install the missing plugin, or correct its name: hawser check /etc/cni/net.d/10-pods.conflist"),
	Entry("another variable", cni.CodeEnvironment, "bridge", "CNI_NETNS: is the host's namespace",
		"the runtime's call is wrong, see the message; read the runtime's log"),
	Entry("another temporary error", cni.CodeTryAgain, "bridge", "interrupted",
		"the runtime tries again; if it fails again, remove the cause in the message"),
	Entry("a version", cni.CodeIncompatibleVersion, "bridge", "x",
		"use a cniVersion in the network list that every plugin of it supports"),
	Entry("a kernel", cni.CodeUnsupportedField, "vlan", "may lack 8021q",
		"the kernel or the interface cannot do it: remove the key, or load the module"),
	Entry("an ended container", cni.CodeUnknownContainer, "bridge", "CNI_NETNS: no such file",
		"the container had ended; if not, the runtime passed a wrong path, see its log"),
	Entry("a file system", cni.CodeIO, "portmap", "open /run/x: read-only file system",
		"check that file system (full, read-only), or install the program"),
	Entry("a node", cni.CodeUnavailable, "firewall", "nf_tables",
		"the node lacks something that the plugin needs: hawser doctor"),
	Entry("a second ADD", cni.CodeExists, "bridge", `container veth name "eth0" already exists`,
		"the runtime must call DEL first, or attach the interface under another name"),
	Entry("lost rules", cni.CodeDrift, "portmap", "x",
		"run hawser reapply, and find out what removes it (hawser watch restores it automatically)"),
	Entry("a lost address", cni.CodeDrift, "cnv-bridge", "x",
		"for a link, an address or a route, restart the container"),
	Entry("an answer", cni.CodeIPAM, "bridge", "x", "check the IPAM plugin's configuration and version"),
	Entry("an unknown code", uint(77), "bridge", "x", ""))
