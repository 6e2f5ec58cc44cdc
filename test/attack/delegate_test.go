package attack_test

import (
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("an ipam.type that is a path (CVE-2021-20206)", Label("ipam-path"), func() {
	It("starts nothing, whatever the command", func() {
		n, p := NewNode(), NewPod("one")
		top := GinkgoT().TempDir()
		mark := filepath.Join(top, "was-here")
		n.Dir = filepath.Join(top, "bin")
		for _, dir := range []string{n.Dir, filepath.Join(n.Dir, "sub")} {
			Expect(os.Mkdir(dir, 0o755)).To(Succeed())
		}
		for _, program := range []string{"evil", "bin/sub/evil", "bin/evil", "bin/a\\b"} {
			Expect(os.WriteFile(filepath.Join(top, program), []byte("#!/bin/sh\ntouch "+mark+"\n"),
				0o755)).To(Succeed())
		}
		run := func(plugin, command, ipam string) Answer {
			GinkgoHelper()
			return n.Invoke(plugin, Call{Command: command, Netns: p.Netns,
				Conf: Object{"cniVersion": "1.1.0", "name": "net", "type": plugin, "cni.dev/valid-attachments": []any{},
					"prevResult": Object{"cniVersion": "1.1.0"}, "ipam": Object{"type": ipam}}})
		}
		before := n.Snapshot("links", "nftables")
		for _, plugin := range []string{"bridge", "ptp"} {
			for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
				for _, ipam := range []string{"../evil", filepath.Join(top, "evil"), "sub/evil", "./evil", ".", "..",
					"a\\b", "../bin/evil", "evil\x00"} {
					a := run(plugin, command, ipam)
					_, err := os.Stat(mark)
					Expect(os.IsNotExist(err)).To(BeTrue(), "%s %s %q", plugin, command, ipam)
					if command == "ADD" {
						Expect(a.Failed(7)).To(ContainSubstring("is no plugin name"))
					}
				}
			}
		}
		Expect(n.Snapshot("links", "nftables")).To(Equal(before))
		run("bridge", "ADD", "evil")
		Expect(mark).To(BeAnExistingFile(), "or the spec shows nothing")
	})
})
