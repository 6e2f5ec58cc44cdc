package tool_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// raw is what no terminal may get: an escape sequence, one of C1, and characters that change the direction of a text.
const raw = "\x1b[31m\u009b1m\u202eX"

// isRaw tells such characters.
func isRaw(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }

var _ = Describe("what the tool prints", Label("tool-quote"), func() {
	// hostile is a node on which everything that others choose has such characters.
	hostile := func() *machine {
		GinkgoHelper()
		bin := GinkgoT().TempDir()
		for _, name := range []string{"bridge", "portmap", "firewall", "host-local"} {
			file := nstest.Must(os.ReadFile(filepath.Join(ours(), name)))
			Expect(os.WriteFile(filepath.Join(bin, name), file, 0o755)).To(Succeed())
		}
		m := newMachine(bin, strings.ReplaceAll(usual, "10.88.0", "10.101.30"))
		p := m.up(newPod("c1", "web"+raw, hostPort(8080, 80)))
		m.up(newPod("c2", "gone"+raw)).Unpin()
		m.Cmd("ip", "link", "set", "cni0", "name", "b\x1b[31mX")
		m.Cmd("nft", "add table inet admin; "+
			"add chain inet admin no { type filter hook forward priority 5; policy drop; comment \"\x1b[31mX\"; }")
		quoted, _ := json.Marshal("said " + raw)
		m.write("/etc/cni/net.d/20-"+"x\x1b[31mX"+".conflist", `{"cniVersion": "1.0.0", "name": `+string(quoted)+`}`)
		m.write("/etc/cni/net.d/30.conflist", "{"+raw)
		m.write("/var/lib/cni/results/damaged"+raw, "{")
		plugin := "#!/bin/sh\nprintf '%s' '" + `{"cniVersion": "1.0.0", "code": 7, "msg": ` + string(quoted) +
			"}'; exit 1\n"
		Expect(os.WriteFile(filepath.Join(bin, "portmap"), []byte(plugin), 0o755)).To(Succeed())
		m.Do(func() { Expect(os.MkdirAll("/var/log/hawser", 0o755)).To(Succeed()) })
		m.write("/var/log/hawser/x", `{"plugin": `+string(quoted)+`, "verb": `+string(quoted)+`, "ms": 1}`)
		p.Cmd("ip", "link", "set", "eth0", "down")
		Expect(m.add(newPod("c3", "new"+raw))).NotTo(Succeed())
		return m
	}

	It("quotes text of other programs, and JSON stays JSON", func() {
		m := hostile()
		seen := ""
		for _, line := range []string{"ls", "why last", "why c3", "why nobody" + raw, "explain", "explain 8080",
			"explain c1", "doctor", "check", "gc --older 0s", "gc --older 0s --yes", "reapply", "metrics",
			"metrics --check", "test",
			"test " + raw, "trace 8081 --for 10ms", raw, "ls --" + raw, "ls --conf /" + raw} {
			out := m.hawser(strings.Split(line, " ")...)
			seen += out.Stdout + out.Stderr
			at := strings.IndexFunc(out.Stdout+out.Stderr, isRaw)
			Expect(at).To(Equal(-1), "%s: %q", line, out.Stdout+out.Stderr)
			asJSON := m.hawser(append(strings.Split(line, " "), "--json")...)
			Expect(strings.IndexFunc(asJSON.Stdout+asJSON.Stderr, isRaw)).To(Equal(-1), "%s: %q", line, asJSON)
			if asJSON.Stdout != "" {
				Expect(json.Valid([]byte(asJSON.Stdout))).To(BeTrue(), "%s: %s", line, asJSON.Stdout)
			}
		}
		Expect(seen).To(ContainSubstring(`web\u001b[31m\u009b1m\u202eX`))
		Expect(m.hawser("metrics").Stdout).To(ContainSubstring(`plugin="said \\u001b[31m`))
	})

	It("keeps the text of other programs in JSON", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web"+raw+"\U000e0001"))
		Expect(asks[[]struct{ Pod string }](m, "ls")).To(ConsistOf(HaveField("Pod", "shop/web"+raw+"\U000e0001")))
	})
})
