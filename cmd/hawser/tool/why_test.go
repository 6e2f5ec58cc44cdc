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
	Expect(advice(skel.Failure{Plugin: plugin, Code: code, Msg: msg})).To(ContainSubstring(says))
},
	Entry("a full range", cni.CodeTryAgain, "host-local", "no IP addresses available in range set: 10.1.0.0/24",
		"gc --yes"),
	Entry("a lock", cni.CodeTryAgain, "host-local", "lock /var/lib/x: held by process 7 (host-local)", "that process"),
	Entry("no DHCP server", cni.CodeTryAgain, "dhcp", "no more tries", "no DHCP server answers"),
	Entry("no DHCP daemon", cni.CodeTryAgain, "dhcp", "error dialing DHCP daemon: dial", "cni-dhcp.socket"),
	Entry("IPv6 that is off", cni.CodeConflict, "bridge", `bridge "cni0": gateway fd00::1/64: IPv6 is off on`,
		"enable IPv6"),
	Entry("an owner", cni.CodeConflict, "bridge", `bridge "cni0": the name is taken by an`, "hawser explain cni0"),
	Entry("a value of the pod", cni.CodeConfig, "bridge", `runtimeConfig.ips[0]: "x" is not`, "the pod's annotation"),
	Entry("a value of the list", cni.CodeConfig, "bridge", "mtu: 7 is not between", "of the network list"),
	Entry("a host port", cni.CodePortTaken, "portmap", `host port 0.0.0.0:8080/tcp: held on 0.0.0.0 by`,
		"hawser explain 8080/tcp"),
	Entry("a missing plugin", cni.CodeEnvironment, "bridge", `CNI_PATH: no plugin "x" in`,
		"install the missing plugin"),
	Entry("an unknown code", uint(77), "bridge", "x", ""))
