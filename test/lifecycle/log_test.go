package lifecycle_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func logLines(file string) (list []Object) {
	GinkgoHelper()
	data := nstest.Must(os.ReadFile(file))
	for text := range strings.Lines(string(data)) {
		var l Object
		Expect(json.Unmarshal([]byte(text), &l)).To(Succeed(), text)
		list = append(list, l)
	}
	return list
}

var _ = Describe("the log of a node", func() {
	var n *World
	var file string
	BeforeEach(func() {
		n, file = NewNode(), filepath.Join(GinkgoT().TempDir(), "hawser.log")
	})

	It("has a line of each call of the runtime, and of each call of IPAM in them", func() {
		n.Env = []string{"HAWSER_LOG=" + file}
		p := n.Up(NewPod("one"), Usual(""))
		for _, command := range []string{"CHECK", "STATUS", "DEL"} {
			n.Must(command, p, Usual(""))
		}
		var have, want []string
		for _, l := range logLines(file) {
			have = append(have, l["plugin"].(string)+" "+l["verb"].(string))
			Expect(l).To(And(HaveKeyWithValue("network", "net"), Not(HaveKey("error"))))
		}
		for _, verb := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
			list := Usual("")
			if verb == "DEL" {
				slices.Reverse(list)
			}
			for _, e := range list {
				if e.Keys["ipam"] != nil {
					want = append(want, "host-local "+verb)
				}
				want = append(want, e.Plugin+" "+verb)
			}
		}
		Expect(have).To(Equal(want))
		added := logLines(file)[1]["result"].(Object)
		Expect(added["interfaces"]).To(ContainElements("cni0", "eth0"))
		Expect(added["ips"]).To(HaveExactElements("10.88.0.2/24", "fd00:88::2/64"))
	})

	It("is written by the configuration's key, to IPAM's line", func() {
		n.Cmd("mount", "-t", "tmpfs", "tmpfs", "/var/log")
		n.Up(NewPod("one"), Usual("").Only("bridge").With("bridge", Object{"log": "bridge.log"}))
		Expect(n.Cmd("jq", "-r", ".plugin", "/var/log/hawser/bridge.log")).To(Equal("host-local\nbridge\n"))
	})

	It("is full where the disk is", func() {
		dir := GinkgoT().TempDir()
		n.Cmd("mount", "-t", "tmpfs", "-o", "size=4096", "none", dir)
		n.Cmd("sh", "-c", "head -c 4096 /dev/zero >"+dir+"/rest")
		n.Env = []string{"HAWSER_LOG=" + filepath.Join(dir, "log")}
		a := n.Chain("ADD", NewPod("one"), Usual("").Only("bridge"))
		Expect(a.Code).To(BeZero(), a.Stdout)
		Expect(a.Stderr).To(ContainSubstring("no space left on device"))
	})
})
