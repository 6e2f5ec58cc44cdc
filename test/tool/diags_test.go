package tool_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// unpacked returns the files of an archive, which tar(1) reads.
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

	It("collects the state of the node", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		Expect(m.add(newPod("c2", "web-1", hostPort(8080, 80)))).NotTo(Succeed())
		m.write("/etc/cni/net.d/log", strings.Repeat(
			`{"time":"2026-01-01","plugin":"bridge","verb":"ADD","ms":7.5}`+"\n", 300)+"nonsense\n")
		Expect(m.says("diags", file, "--log", "/etc/cni/net.d/log")).To(HavePrefix(file + ": read it"))
		files := unpacked(m, file)
		for name, text := range map[string]string{
			"versions.json": `"kernel": "`, "ls.json": `"pod": "shop/web-0"`, "failures.json": `"pod": "shop/web-1"`,
			"lists.json": `"bridge": "cni0"`, "chains.json": `"chain": "masq_v2"`, "nft-inet.json": `"portmap`,
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

	It("contains no secret of lists, arguments, rules, logs or the environment", func() {
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

	It("contains no words of another program, no credentials of a URL, and only keys that it knows", func() {
		list := strings.NewReplacer(
			`"bridge": "cni0",`, `"bridge": "cni0", "type bridge": "`+secret+`", "mtu vlan": "`+secret+`",
				"dataDir": "tcp://user:`+secret+`@host/dir", "log": "see ssh://me:`+secret+`/x@host now",
				"gateway": ["ftp://host/?token=`+secret+`", "ftp://u:\"`+secret+`@host"],`,
			`"type": "host-local"`, `"type": "outside"`).Replace(usual)
		m := newMachine(nstest.Must(filepath.Abs(GinkgoT().TempDir())), list)
		plugin := func(name, text string) {
			m.write("/opt/cni/bin/"+name, text)
			m.Cmd("chmod", "755", "/opt/cni/bin/"+name)
		}
		for _, name := range []string{"bridge", "portmap", "firewall"} {
			plugin(name, string(nstest.Must(os.ReadFile(nstest.Build(name)))))
		}
		m.Cmd("mkdir", "-p", "/var/lib/cni/cluster-local")
		env := append(os.Environ(), "HAWSER_LOG=/etc/cni/net.d/log")
		for _, script := range []string{
			`echo '{"code": 7, "msg": "bad token ` + secret + `", "details": "it is ` + secret + `"}'; exit 1`,
			`echo 'token ` + secret + `' >&2; exit 1`,
		} {
			plugin("outside", "#!/bin/sh\n"+script+"\n")
			plugin("cluster-local", "#!/bin/sh\n"+script+"\n")
			for _, command := range []string{"ADD", "DEL"} {
				out := m.Run(nstest.Program{Path: "/opt/cni/bin/bridge", Stdin: strings.Replace(nstest.Must(conf(list)),
					`"log":`, `"blog":`, 1), Env: append(env, "CNI_COMMAND="+command, "CNI_CONTAINERID=c1",
					"CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin", "CNI_NETNS="+nstest.NewNetns().Path)})
				Expect(out.Stdout).To(ContainSubstring(secret), command)
			}
			out := m.hawser("diags", file, "--log", "/etc/cni/net.d/log")
			Expect(out.Exit).To(BeZero(), out.Stderr)
			Expect(out.Stdout).To(HaveSuffix("\nSome facts could not be read; errors.json in it has the reasons.\n"))
			files := unpacked(m, file)
			for name, text := range files {
				Expect(text).NotTo(ContainSubstring(secret), name)
			}
			Expect(files["failures.json"]).To(ContainSubstring(`"code": `))
			Expect(files["log.json"]).To(ContainSubstring(`"code": `))
			Expect(files["errors.json"]).To(ContainSubstring("cluster-local: "))
			Expect(files["lists.json"]).To(And(ContainSubstring(`"tcp://(left out)@host/dir"`),
				ContainSubstring(`"see ssh://(left out)@host now"`), ContainSubstring(`"ftp://host/?(left out)"`)))
			m.Cmd("rm", file)
		}
	})

	It("contains the messages of Hawser's own plugins", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		Expect(m.add(newPod("c2", "web-1", hostPort(8080, 80)))).NotTo(Succeed())
		full := strings.Replace(usual, `"subnet": "10.88.0.0/24"`,
			`"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.2", "rangeEnd": "10.88.0.2"`, 1)
		m.list = nstest.Must(libcni.NetworkConfFromBytes([]byte(full)))
		Expect(m.add(newPod("c3", "web-2"))).NotTo(Succeed())
		m.says("diags", file)
		Expect(unpacked(m, file)["failures.json"]).To(And(ContainSubstring("8080"), ContainSubstring("host-local"),
			MatchRegexp(`"msg": "[^"]*10\.88\.0`)))
	})
})

// conf returns the configuration of a list's first plugin, as runtimes write it to standard input.
func conf(list string) (string, error) {
	var doc struct{ Plugins []map[string]any }
	if err := json.Unmarshal([]byte(list), &doc); err != nil {
		return "", err
	}
	first := doc.Plugins[0]
	first["cniVersion"], first["name"] = "1.0.0", "pods"
	data, err := json.Marshal(first)
	return string(data), err
}
