package lifecycle_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// logLine is what is looked at of a line of the log.
type logLine struct {
	PID                                        int
	Plugin, Verb, Network, ContainerID, IfName string
	MS                                         float64
	Result                                     *struct{ Interfaces, IPs []string }
	Error                                      *struct {
		Code uint
		Msg  string
	}
}

func (l logLine) String() string { return l.Plugin + " " + l.Verb }

func logLines(file string) (list []logLine) {
	GinkgoHelper()
	data, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	for text := range strings.Lines(string(data)) {
		var l logLine
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
		var have []string
		for _, l := range logLines(file) {
			have = append(have, l.String())
			Expect(l.Error).To(BeNil())
			Expect(l.Network).To(Equal("net"))
			Expect(l.MS).To(BeNumerically(">", 0))
		}
		Expect(have).To(Equal([]string{"host-local ADD", "bridge ADD", "portmap ADD", "tuning ADD",
			"host-local CHECK", "bridge CHECK", "portmap CHECK", "tuning CHECK", "host-local STATUS", "bridge STATUS",
			"portmap STATUS", "tuning STATUS",
			"tuning DEL", "portmap DEL", "host-local DEL", "bridge DEL"}))
		add := logLines(file)[1]
		Expect(add.Result.Interfaces).To(ContainElements("cni0", "eth0"))
		Expect(add.Result.IPs).To(HaveExactElements("10.88.0.2/24", "fd00:88::2/64"))
	})

	It("is written by the configuration's key, to IPAM's line", func() {
		entries := Usual("")
		for i := range entries {
			entries[i].Keys = Merge(entries[i].Keys, Object{"log": file})
		}
		n.Up(NewPod("one"), entries)
		Expect(logLines(file)).To(HaveLen(4))
	})

	It("loses no line of calls side by side", func() {
		n.Env = []string{"HAWSER_LOG=" + file}
		const pods = 12
		var wait sync.WaitGroup
		for i := range pods {
			wait.Go(func() {
				defer GinkgoRecover()
				n.Up(NewPod(fmt.Sprintf("pod%d", i)), Usual("").Only("bridge"))
			})
		}
		wait.Wait()
		list := logLines(file)
		Expect(list).To(HaveLen(2 * pods))
		for i := range pods {
			Expect(slices.IndexFunc(list, func(l logLine) bool {
				return l.Plugin == "bridge" &&
					l.ContainerID == fmt.Sprintf("pod%d", i)
			})).To(BeNumerically(">=", 0))
		}
	})

	It("tells why a call failed", func() {
		n.Env = []string{"HAWSER_LOG=" + file}
		p := n.Up(NewPod("one"), Usual("").Only("bridge"))
		Expect(n.Chain("ADD", p, Usual("").Only("bridge")).Code).To(Equal(1))
		all := logLines(file)
		l := all[len(all)-1]
		Expect(l.Error.Code).To(BeEquivalentTo(100))
		Expect(l.Error.Msg).To(ContainSubstring("exists already"))
		Expect(l.Result).To(BeNil())
	})

	It("that cannot be written changes nothing but standard error", func() {
		for _, bad := range []string{"/proc/nothing/log", "/dev/null", "x"} {
			n.Env = []string{"HAWSER_LOG=" + bad}
			p := NewPod("one")
			for _, command := range []string{"ADD", "CHECK", "DEL"} {
				a := n.Chain(command, p, Usual("").Only("bridge"))
				Expect(a.Code).To(BeZero(), a.Stdout)
				Expect(strings.Count(a.Stderr, "the call is not in the log")).To(Equal(2), "bridge and host-local: %s",
					a.Stderr)
			}
		}
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
