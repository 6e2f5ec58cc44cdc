package main

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// TestMain runs the specs in namespaces of their own: none can touch the machine.
func TestMain(m *testing.M) { nstest.Main(m) }

func TestSample(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "plugins/sample")
}

// prev is the result of the plugin that made eth0.
const prev = `{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}], "ips": [{"interface": 0, "address": "10.1.0.2/24"}]}`

// conf is a configuration of network "net": keys are added, or taken away by nil.
func conf(more ...Object) Object {
	base := Object{"cniVersion": "1.1.0", "name": "net", "type": "sample", "label": "web", "prevResult": Object{}}
	return Merge(append([]Object{base}, more...)...)
}

// alias is what ip(8) says: never what our own code reads back.
func alias(cont *nstest.Host) string {
	GinkgoHelper()
	var links []struct{ IfAlias string }
	cont.JSON(&links, "ip", "-j", "link", "show", "dev", "eth0")
	return links[0].IfAlias
}

// nobody does not read the result.
type nobody struct{}

func (nobody) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

var _ = Describe("sample", func() {
	var w *World
	var cont *nstest.Host
	container := func() *nstest.Host {
		c := nstest.NewNetns()
		w.Cmd("ip", "link", "add", "eth0", "netns", c.Name, "type", "veth", "peer", "name", "to"+c.Name)
		return c
	}
	BeforeEach(func() {
		w = NewWorld(plugin())
		cont = container()
	})
	call := func(command string, more ...Object) Call {
		return Call{Command: command, Netns: cont.Path, Conf: conf(more...)}
	}

	It("labels the interface, passes the result on, and takes the label away", func() {
		before := cont.Snapshot()
		added := w.Call(call("ADD", Object{"prevResult": json.RawMessage(prev)})).Added()
		Expect(added.Text).To(MatchJSON(prev))
		manual, err := os.ReadFile("README.md")
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.Split(string(manual), "\n")).To(ContainElement("        alias " + alias(cont)))
		w.Succeeds(call("CHECK", Object{"prevResult": json.RawMessage(prev)}))
		w.Succeeds(call("DEL"))
		Expect(cont.Snapshot()).To(Equal(before))
	})

	It("runs as a program, as a runtime runs it", func() {
		w.Exec(call("ADD")).Added()
		Expect(alias(cont)).To(HaveSuffix(" web"))
		Expect(w.Exec(call("DEL")).Code).To(BeZero())
		Expect(alias(cont)).To(BeEmpty())
	})

	It("leaves no label when nobody takes the result", func() {
		c := call("ADD")
		c.Stdout = nobody{}
		Expect(w.Call(c).Code).To(Equal(1))
		Expect(alias(cont)).To(BeEmpty())
	})

	It("refuses an interface that has an alias, its own too, and leaves it alone", func() {
		w.Add(call("ADD"))
		mine := alias(cont)
		Expect(w.Fails(call("ADD", Object{"label": "other"}), cni.CodeExists)).To(ContainSubstring(mine))
		Expect(alias(cont)).To(Equal(mine))
	})

	It("succeeds in every form of DEL, and takes nobody else's label", func() {
		other := container()
		w.Add(Call{ID: "two", Netns: other.Path, Conf: conf()})
		theirs := alias(other)
		w.Succeeds(call("DEL")) // before ADD
		w.Add(call("ADD"))
		for _, path := range []string{"", "/run/netns/gone", other.Path} {
			w.Succeeds(Call{Command: "DEL", Netns: path, Conf: conf(Object{"label": nil})})
		}
		Expect(alias(other)).To(Equal(theirs))
		Expect(alias(cont)).To(HaveSuffix(" web"))
		w.Succeeds(call("DEL"))
		w.Succeeds(call("DEL"))
		cont.Cmd("ip", "link", "del", "eth0")
		w.Succeeds(call("DEL"))
	})

	It("notices in CHECK that the label is another", func() {
		w.Add(call("ADD"))
		cont.Cmd("ip", "link", "set", "eth0", "alias", "mine")
		Expect(w.Fails(call("CHECK"), cni.CodeDrift)).To(ContainSubstring(`alias is "mine"`))
	})

	DescribeTable("refuses", func(more Object, message string) {
		Expect(w.Fails(call("ADD", more), cni.CodeConfig)).To(HavePrefix(message))
		Expect(alias(cont)).To(BeEmpty())
	},
		Entry("no label", Object{"label": nil}, "label: missing"),
		Entry("a label that is too long", Object{"label": strings.Repeat("x", 101)}, "label: "),
		Entry("a label that cannot be printed", Object{"label": "a\nb"}, `label: "a\nb" has characters other than printable ASCII`),
		Entry("a label of another type", Object{"label": 5}, "label: is a JSON number, want a string"),
		Entry("to be the first of the chain", Object{"prevResult": nil}, "prevResult: missing"),
	)
})
