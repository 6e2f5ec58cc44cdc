package clients_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/test/pods"
)

const conflistName = "10-pods.conflist"

// node is a host where a runtime with one of the libraries lives.
type node struct {
	*plugintest.World
	library, netconf string
}

func newNode(library string, n pods.Network) *node {
	GinkgoHelper()
	d := &node{World: plugintest.NewNode(), library: library, netconf: GinkgoT().TempDir()}
	d.configure(n.Conflist())
	return d
}

func (d *node) configure(conflist string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(d.netconf, conflistName), []byte(conflist), 0o644)).To(Succeed())
}

// install replaces the plugins by those of a directory, or by ours.
func (d *node) install(from string) {
	GinkgoHelper()
	for _, name := range nstest.Plugins() {
		path := filepath.Join(from, name)
		if from == "" {
			path = nstest.Build(name)
		}
		Expect(os.Symlink(path, filepath.Join(d.Dir, ".new"))).To(Succeed())
		Expect(os.Rename(filepath.Join(d.Dir, ".new"), filepath.Join(d.Dir, name))).To(Succeed())
	}
}

// client is a process with the library, which is asked for verbs ("add check") of all pods at once.
func (d *node) client(verbs string, pods ...pod) nstest.Program {
	GinkgoHelper()
	in := plugintest.Text(order{strings.Fields(verbs), pods})
	return nstest.Program{Path: "/proc/self/exe", Stdin: in, Env: []string{
		libraryEnv + "=" + d.library, pluginsEnv + "=" + d.Dir, netconfEnv + "=" + d.netconf}}
}

func (d *node) do(verbs string, pods ...pod) answer {
	GinkgoHelper()
	out := d.Run(d.client(verbs, pods...))
	GinkgoWriter.Print(out.Stderr)
	Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
	var a answer
	Expect(json.Unmarshal([]byte(out.Stdout), &a)).To(Succeed(), out.Stdout)
	return a
}

func (d *node) must(verbs string, pods ...pod) answer {
	GinkgoHelper()
	a := d.do(verbs, pods...)
	Expect(a.Error).To(BeEmpty())
	return a
}

func newPod(id string, ports ...port) pod {
	GinkgoHelper()
	return pod{ID: id, Netns: nstest.NewNetns().Path, Ports: ports}
}
