package docs_test

import (
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("the policy of docs/tenants.md", Label("tenant-policy"), func() {
	// blocks are the page's JSON documents of a kind: policy, accepted, refused.
	blocks := func(kind string) (texts []string) {
		GinkgoHelper()
		for _, m := range labelled.FindAllStringSubmatch(read(root("docs/tenants.md")), -1) {
			if m[1] == kind {
				texts = append(texts, m[2])
			}
		}
		Expect(texts).NotTo(BeEmpty(), kind)
		return texts
	}
	var file string
	BeforeEach(func() {
		file = filepath.Join(GinkgoT().TempDir(), "policy.json")
		Expect(os.WriteFile(file, []byte(blocks("policy")[0]), 0o600)).To(Succeed())
	})
	// statuses are the exit statuses of --check-config of the list's plugins.
	statuses := func(list string) (exits []int) {
		GinkgoHelper()
		for _, entry := range parsed(list).(object)["plugins"].([]any) {
			out := nstest.NewHost().Run(nstest.Program{Path: nstest.Build(entry.(object)["type"].(string)),
				Args: []string{"--check-config", "--policy", file}, Stdin: list})
			exits = append(exits, out.Exit)
		}
		return exits
	}

	It("accepts and refuses its examples", func() {
		for _, list := range blocks("accepted") {
			Expect(statuses(list)).To(HaveEach(0), list)
		}
		for _, list := range blocks("refused") {
			Expect(statuses(list)).To(ContainElement(1), list)
		}
	})

	It("trusts its examples of generated configurations, and nothing that differs from them", func() {
		n := plugintest.NewNode()
		n.Cmd("bash", "-ec", `mount -t tmpfs tmpfs /etc; mkdir -p /etc/cni/hawser/generated
			cp "$1" /etc/cni/hawser/policy.json`, "-", file)
		for label, plugin := range map[string]string{"flannel": "bridge", "antrea": "host-local"} {
			list := blocks(label)[0]
			conf := parsed(list).(object)["plugins"].([]any)[0].(object)
			conf["name"], conf["cniVersion"] = parsed(list).(object)["name"], "0.4.0"
			call := func(command string, more object) plugintest.Answer {
				p := plugintest.NewPod("one")
				return n.Invoke(plugin, plugintest.Call{Command: command, ID: "one", Netns: p.Netns,
					Conf: plugintest.Merge(conf, more)})
			}
			Expect(call("ADD", nil).Failed(7)).To(ContainSubstring("of the policy"), "without the file")
			n.Cmd("bash", "-ec", `printf %s "$1" >/etc/cni/hawser/generated/10.conflist`, "-", list)
			Expect(call("ADD", object{"promiscMode": true}).Failed(7)).To(ContainSubstring("of the policy"))
			a := call("ADD", nil)
			Expect(a.Code).To(BeZero(), a.Stdout)
			Expect(call("DEL", nil).Code).To(BeZero())
		}
	})

	It("holds for ADD, CHECK and STATUS with code 7, and not for DEL and GC", func() {
		n := plugintest.NewNode()
		n.Cmd("bash", "-ec", `mount -t tmpfs tmpfs /etc; mkdir -p /etc/cni/hawser
			cp "$1" /etc/cni/hawser/policy.json`, "-", file)
		p := plugintest.NewPod("one")
		call := func(command, bridge string) plugintest.Answer {
			return n.Invoke("bridge", plugintest.Call{Command: command, ID: "one", Netns: p.Netns,
				Conf: object{"cniVersion": "1.1.0", "name": "team", "type": "bridge", "bridge": bridge,
					"cni.dev/valid-attachments": []any{}}})
		}
		Expect(call("ADD", "tenant0").Code).To(BeZero())
		Expect(call("CHECK", "tenant0").Stdout).NotTo(ContainSubstring("policy"))
		for _, command := range []string{"ADD", "CHECK", "STATUS"} {
			Expect(call(command, "cni0").Failed(7)).To(ContainSubstring(
				`bridge: "cni0" is not permitted by bridges of the policy`), command)
		}
		Expect(call("GC", "cni0").Code).To(BeZero())
		Expect(call("DEL", "cni0").Code).To(BeZero())
	})
})
