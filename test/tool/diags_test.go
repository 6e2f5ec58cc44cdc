package tool_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// unpacked has the files of a tar, read by tar(1).
func unpacked(m *machine, file string) map[string]string {
	GinkgoHelper()
	files := map[string]string{}
	for _, name := range strings.Fields(m.Cmd("tar", "-tf", file)) {
		files[strings.TrimPrefix(name, "hawser-diags/")] = m.Cmd("tar", "-xOf", file, name)
	}
	return files
}

var _ = Describe("hawser diags", Label("tool-diags"), func() {
	const secret, file = "s3cr3t", "/etc/cni/net.d/diags.tar"

	It("collects what is on the node", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		Expect(m.add(newPod("c2", "web-1", hostPort(8080, 80)))).NotTo(Succeed())
		m.write("/etc/cni/net.d/log", strings.Repeat(
			`{"time":"2026-01-01","plugin":"bridge","verb":"ADD","ms":7.5}`+"\n", 300)+"nonsense\n")
		Expect(m.says("diags", file, "--log", "/etc/cni/net.d/log")).To(HavePrefix(file + ": look at it"))
		files := unpacked(m, file)
		for name, text := range map[string]string{
			"versions.json": `"kernel": "`, "ls.json": `"pod": "shop/web-0"`, "failures.json": `"pod": "shop/web-1"`,
			"lists.json": `"bridge": "cni0"`, "chains.json": `"chain": "masq_v1"`, "nft-inet.json": `"portmap`,
			"link.json": `"Name": "cni0"`, "addr.json": `"10.88.0.1/24"`, "route.json": `"10.88.0.0/24"`,
			"rule.json": "254", "log.json": `"ms": 7.5`, "errors.json": "null", "nft-bridge.json": "null",
		} {
			Expect(files).To(HaveKeyWithValue(name, ContainSubstring(text)))
			Expect(json.Valid([]byte(files[name]))).To(BeTrue(), name)
		}
		Expect(files).To(HaveLen(13))
		Expect(m.says("ls", "--json")).To(MatchJSON(files["ls.json"]))
		Expect(strings.Count(files["log.json"], `"ms"`)).To(Equal(200))
		Expect(m.Cmd("stat", "-c", "%a", file)).To(HavePrefix("600"))
		again := m.hawser("diags", file)
		Expect([]any{again.Exit, again.Stderr}).To(ConsistOf(1, ContainSubstring("file exists")))
	})

	It("has no secret from anywhere", func() {
		list := strings.ReplaceAll(strings.NewReplacer(
			`"bridge": "cni0",`, `"bridge": "cni0", "token": "SECRET", "SECRET": 1, "args": {"cni": {"x": "SECRET"}},`,
			`{"type": "firewall"}`,
			`{"type": "firewall", "x": {"type": "SECRET"}, "runtimeConfig": {"y": "SECRET"}}`,
			`"routes": [{`, `"password": ["SECRET"], "routes": [{"note": "SECRET", `).Replace(usual), "SECRET", secret)
		m := newMachine(ours(), list)
		p := newPod("c1", "web-0", hostPort(8080, 80))
		p.rt.Args = append(p.rt.Args, [2]string{"TOKEN", secret})
		p.rt.CapabilityArgs["io.kubernetes.cri.pod-annotations"] = map[string]string{"note": secret}
		m.up(p)
		bad := newPod("c2", "web-1", hostPort(8080, 80))
		bad.rt.Args, bad.rt.CapabilityArgs["note"] = p.rt.Args, secret
		Expect(m.add(bad)).NotTo(Succeed())
		m.IP("link add d0 type bridge", "link set d0 alias "+secret)
		m.Cmd("nft", "add", "table", "inet", "x")
		m.Cmd("nft", `add chain inet x y { type filter hook forward priority 0 ; comment "`+secret+`" ; }`)
		m.Cmd("nft", "add", "rule", "inet", "x", "y", "accept", "comment", secret)
		m.write("/etc/cni/net.d/log", secret+"\n"+
			`{"time":"1","plugin":"bridge","verb":"ADD","ms":7.5,"token":"`+secret+`",`+
			`"result":{"z":["`+secret+`"]}}`+"\n")
		out := m.Run(nstest.Program{Path: nstest.Build("hawser"),
			Args: []string{"diags", file, "--log", "/etc/cni/net.d/log"},
			Env:  append(os.Environ(), "TOKEN="+secret, "CNI_ARGS=TOKEN="+secret)})
		Expect(out.Exit).To(BeZero(), out.Stderr)
		Expect(filepath.Base(out.Stdout)).NotTo(ContainSubstring(secret))
		files := unpacked(m, file)
		Expect(files["lists.json"]).To(ContainSubstring(`"other keys": 3`))
		Expect(files["failures.json"]).To(ContainSubstring("web-0"))
		Expect(files["chains.json"]).To(ContainSubstring(`"table": "inet x"`))
		Expect(files["log.json"]).To(ContainSubstring("7.5"))
		for name, text := range files {
			Expect(text).NotTo(ContainSubstring(secret), name)
		}
		var all []byte
		m.Do(func() { all = nstest.Must(os.ReadFile(file)) })
		Expect(bytes.Contains(all, []byte(secret))).To(BeFalse(), fmt.Sprint(len(all)))
	})
})
