package tool

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// productTexts returns the texts of at least two words in the plugins and packages. Verbs such as %s separate the parts
// of a text.
var productTexts = sync.OnceValue(func() (all [][]string) {
	verb, words := regexp.MustCompile(`%[#.\d\[\]]*[a-z]`), regexp.MustCompile(`[a-z'-]{2,} [a-z'-]{2,}|^CNI_`)
	var text func(n ast.Expr) string
	text = func(n ast.Expr) string {
		switch n := n.(type) {
		case *ast.BasicLit:
			value, _ := strconv.Unquote(n.Value)
			return value
		case *ast.BinaryExpr:
			return text(n.X) + text(n.Y)
		}
		return "%s"
	}
	add := func(n ast.Node) bool {
		x, isExpr := n.(ast.Expr)
		switch n.(type) {
		case *ast.BinaryExpr, *ast.BasicLit:
			if format := text(x); isExpr && words.MatchString(format) {
				all = append(all, verb.Split(format, -1))
			}
			return false
		}
		return true
	}
	for _, dir := range []string{"pkg", "plugins"} {
		Expect(filepath.WalkDir(nstest.Root()+"/"+dir, func(path string, _ fs.DirEntry, err error) error {
			isTest := strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/nstest/")
			if err == nil && strings.HasSuffix(path, ".go") && !isTest {
				ast.Inspect(nstest.Must(parser.ParseFile(token.NewFileSet(), path, nil, 0)), add)
			}
			return err
		})).To(Succeed())
	}
	return all
})

// isProductText reports whether a message has all parts of one of productTexts, and these are at least a fifth of it.
func isProductText(msg string) bool {
	return slices.ContainsFunc(productTexts(), func(parts []string) bool {
		rest := msg
		for _, part := range parts {
			_, after, found := strings.Cut(rest, part)
			if !found {
				return false
			}
			rest = after
		}
		return 5*len(strings.Join(parts, "")) >= len(msg)
	})
}

var _ = DescribeTable("advice is about the cause of a failure", Label("tool-why"), func(
	code uint, plugin, msg, says string,
) {
	Expect(isProductText(msg)).To(BeTrue(), "no plugin writes this message")
	said := advice(skel.Failure{Plugin: plugin, Code: code, Msg: msg}, "/etc/cni/net.d/10-pods.conflist")
	Expect(said).To(HaveSuffix(says))
	Expect(said).NotTo(MatchRegexp("FILE|OBJECT"))
},
	Entry("a full range", cni.CodeTryAgain, "host-local", "no IP addresses available in range set: 10.1.0.0/24",
		"release stale leases (hawser gc --yes), or add a range"),
	Entry("a lock", cni.CodeTryAgain, "host-local", "lock /run/x: held by process 7 (ip)",
		"wait until that process ends; the runtime tries again"),
	Entry("no DHCP server", cni.CodeTryAgain, "dhcp", "no more tries",
		"find out why no DHCP server answers: the VLAN, the server's log"),
	Entry("no DHCP daemon", cni.CodeTryAgain, "dhcp", "error dialing DHCP daemon: dial unix /run/dhcp.sock",
		"cni-dhcp.socket"),
	Entry("IPv6 that is off", cni.CodeConflict, "bridge",
		`bridge "cni0": gateway fd00::1/64: IPv6 is off on the interface; turn it on with "sysctl -w x": denied`,
		"enable IPv6 with the command in the message, also in /etc/sysctl.d"),
	Entry("an address of the host", cni.CodeConflict, "bridge",
		"address 10.88.0.2: the host has it; exclude it from the addresses that IPAM assigns",
		"exclude the host's address from the range (ipam.exclude)"),
	Entry("a neighbor's address", cni.CodeConflict, "ptp",
		"address 10.88.0.100/32: pod shop/web-0 has it, and the host would no longer reach that container; choose "+
			"addresses that no other network of the node uses",
		"release the name or address, or choose another one: hawser explain 10.88.0.100"),
	Entry("a neighbor's subnet", cni.CodeConflict, "ptp",
		"address 10.88.0.128/25: is in subnet 10.88.0.0/24 of pod shop/web-0, and the host would not reach "+
			"containers of that network with such addresses; choose addresses that no other network of the node uses",
		"write a subnet that no other network of the node uses"),
	Entry("a large subnet", cni.CodeConflict, "bridge",
		"gateway 16.0.0.1/4: the prefix is shorter than /7, and takes packets of the host's default route; "+
			"choose a smaller subnet",
		"write a smaller subnet for the network"),
	Entry("the router's subnet", cni.CodeConflict, "bridge",
		"gateway 192.0.2.9/24: the host's own router 192.0.2.1 is in this subnet, and the host would no longer "+
			"reach it; choose a subnet that the node does not use",
		"write a subnet that the node's network does not use"),
	Entry("a bridge's port", cni.CodeConflict, "macvlan",
		`master: "b0": the bridge connects a container by port "veth0", and the host would receive nothing from `+
			"it; use another mode", "write another mode than passthru, or another master"),
	Entry("a second macvlan", cni.CodeConflict, "macvlan",
		`master: "e0": refuses a macvlan of mode "passthru" (a passthru must be the only macvlan on its master): x`,
		"write another mode than passthru, or another master"),
	Entry("a policy", cni.CodeConflict, "firewall",
		`ingressPolicy: "same-bridge": bridge "b0" also connects pod shop/web-0, which the policy would restrict; use `+
			"another bridge, or a list in a directory of the administrator (trustedDirs in /etc/hawser/tenants.json, "+
			"by default /etc/cni/net.d)", "write another bridge or another ingressPolicy"),
	Entry("an owner", cni.CodeConflict, "bridge",
		`bridge "cni0": the name is taken by an interface of kind "veth": "cni0" already exists but is not a bridge`,
		"release the name or address, or choose another one: hawser explain cni0"),
	Entry("an IPv6 address", cni.CodeConflict, "ptp", "address fd00::2: pod shop/web-0 has it, and the host would no "+
		"longer reach that container; choose addresses that no other network of the node uses",
		": hawser explain fd00::2"),
	Entry("a master", cni.CodeConflict, "macvlan", `master: "e0": is held by bond0: busy`, ": hawser explain e0"),
	Entry("a requested address", cni.CodeConflict, "host-local",
		"ips: requested IP address 10.1.0.2 is not available in range set 10.1.0.1-10.1.0.9: taken for c1",
		": hawser explain 10.1.0.2"),
	Entry("an owner that the host does not have", cni.CodeConflict, "vrf",
		`interface "eth0": has already a master set: "vrf0"`,
		"release the name or address, or choose another one"),
	Entry("a value of the pod", cni.CodeConfig, "bridge", `runtimeConfig.ips[0]: "x" is not an IP address`,
		"the runtime sent the value: correct the pod's annotation or the command"),
	Entry("an argument of the pod", cni.CodeConfig, "static", `args.cni.ips[0]: "x" is not an IP address`,
		"the runtime sent the value: correct the pod's annotation or the command"),
	Entry("CNI_ARGS", cni.CodeEnvironment, "static",
		"CNI_ARGS: pair 1 is not KEY=value", "correct the pod's annotation or the command"),
	Entry("a value of the list", cni.CodeConfig, "bridge", "mtu: 7 is not between",
		"correct the named key of the network list: hawser check /etc/cni/net.d/10-pods.conflist"),
	Entry("JSON", cni.CodeDecode, "bridge", "invalid JSON at byte 7: invalid character",
		"the network list is not valid JSON: hawser check /etc/cni/net.d/10-pods.conflist"),
	Entry("a host port", cni.CodePortTaken, "portmap", `host port 0.0.0.0:8080/tcp: held on 0.0.0.0 by`,
		"another container has the host port: hawser explain 8080/tcp"),
	Entry("a missing plugin", cni.CodeEnvironment, "bridge", `CNI_PATH: no plugin "x" in "/opt/cni/bin": not found`,
		"install the missing plugin, or correct its name: hawser check /etc/cni/net.d/10-pods.conflist"),
	Entry("another variable", cni.CodeEnvironment, "bridge",
		`CNI_NETNS: network namespace "x": is the plugin's own (CNI_NETNS_OVERRIDE=1 allows it)`,
		"the runtime's call is wrong, see the message; read the runtime's log"),
	Entry("another temporary error", cni.CodeTryAgain, "bridge",
		"link eth0: netlink call interrupted repeatedly, giving up: connection timed out: dump interrupted",
		"the runtime tries again; if it fails again, remove the cause in the message"),
	Entry("a version", cni.CodeIncompatibleVersion, "bridge",
		`cniVersion: no result has version "7.0.0"`,
		"use a cniVersion in the network list that every plugin of it supports"),
	Entry("a kernel", cni.CodeUnsupportedField, "vlan",
		`link "v7": create: operation not supported: not supported by this kernel, which may lack 8021q`,
		"the kernel or the interface cannot do it: remove the key, or load the module"),
	Entry("an ended container", cni.CodeUnknownContainer, "bridge", "CNI_NETNS: no such file",
		"the container had ended; if not, the runtime passed a wrong path, see its log"),
	Entry("a file system", cni.CodeIO, "portmap", "network configuration: read standard input: input/output error",
		"check that file system (full, read-only), or install the program"),
	Entry("a policy's file", cni.CodeIO, "portmap", "policy /etc/hawser/tenants.json: not a regular file that only "+
		"root may write; run: chown root /etc/hawser/tenants.json && chmod 644 /etc/hawser/tenants.json",
		"correct the administrator's file that the message names"),
	Entry("a node", cni.CodeUnavailable, "host-local", "ipam.dataDir: cannot write leases: read-only file system",
		"the node lacks something that the plugin needs: hawser doctor"),
	Entry("a second ADD", cni.CodeExists, "bridge",
		`veth (pods/c1/eth0): container veth name "eth0" already exists`,
		"the runtime must call DEL first, or attach the interface under another name"),
	Entry("lost rules", cni.CodeDrift, "portmap", "host ports: there is no record of this attachment (x)",
		"run hawser reapply, and find out what removes it (hawser watch restores it automatically)"),
	Entry("a lost address", cni.CodeDrift, "cnv-bridge", `bridge "cni0": is not promiscuous`,
		"for a link, an address or a route, restart the container"),
	Entry("an answer", cni.CodeIPAM, "bridge", "ipam host-local: its answer has no addresses",
		"check the IPAM plugin's configuration and version"),
	Entry("an unknown code", uint(77), "bridge", "CNI_ARGS: pair 1 is not KEY=value", ""))
