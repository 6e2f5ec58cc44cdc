package main

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestLoopback(t *testing.T) { nstest.RunSpecs(t, "plugins/main/loopback") }

// call is one call of the plugin for container "one".
type call struct {
	command, netns string
	ifName         string // "lo"
	version        string // "1.1.0"
	more           string // further keys of the configuration
	stdout         io.Writer
}

func (c call) conf() string {
	version := c.version
	if version == "" {
		version = "1.1.0"
	}
	return `{"cniVersion":"` + version + `","name":"lo","type":"loopback"` + c.more + `}`
}

func (c call) vars() []string {
	ifName := c.ifName
	if ifName == "" {
		ifName = "lo"
	}
	return []string{"CNI_COMMAND=" + c.command, "CNI_CONTAINERID=one", "CNI_IFNAME=" + ifName, "CNI_NETNS=" + c.netns,
		"CNI_PATH=/nowhere"}
}

func (c call) run(h *nstest.Host) (code int, stdout string) {
	GinkgoHelper()
	var out bytes.Buffer
	env := skel.Env{Vars: c.vars(), Stdin: strings.NewReader(c.conf()), Stdout: &out, Stderr: GinkgoWriter}
	if c.stdout != nil {
		env.Stdout = c.stdout
	}
	h.Do(func() { code = skel.Run(GinkgoT().Context(), plugin(), env) })
	return code, out.String()
}

func (c call) succeeds(h *nstest.Host) string {
	GinkgoHelper()
	code, out := c.run(h)
	Expect(code).To(BeZero(), out)
	if c.command != "ADD" {
		Expect(out).To(BeEmpty())
	}
	return out
}

func (c call) fails(h *nstest.Host, code uint) string {
	GinkgoHelper()
	status, out := c.run(h)
	Expect(status).To(Equal(1), out)
	var e struct {
		Code uint
		Msg  string
	}
	Expect(json.Unmarshal([]byte(out), &e)).To(Succeed(), out)
	Expect(e.Code).To(Equal(code), out)
	return e.Msg
}

func up(h *nstest.Host) bool {
	GinkgoHelper()
	var links []struct{ Flags []string }
	h.JSON(&links, "ip", "-j", "link", "show", "dev", "lo")
	return slices.Contains(links[0].Flags, "UP")
}

var _ = Describe("loopback", func() {
	var host, cont *nstest.Host
	var c call
	BeforeEach(func() {
		host, cont = nstest.NewHost(), nstest.NewNetns()
		c = call{command: "ADD", netns: cont.Path}
	})
	as := func(command, more string) call {
		d := c
		d.command, d.more = command, more
		return d
	}
	del := func(netns string) call { d := as("DEL", ""); d.netns = netns; return d }

	DescribeTable("brings lo up and says so in the asked version", Label("versions"), func(version, want string) {
		c.version = version
		Expect(up(cont)).To(BeFalse())
		out := c.succeeds(host)
		Expect(up(cont)).To(BeTrue())
		Expect(out).To(MatchJSON(strings.NewReplacer("VERSION", version, "NETNS", cont.Path).Replace(want)))
		Expect(cont.Run(nstest.Program{Path: "ping", Args: []string{"-c1", "-w40", "127.0.0.1"}}).Exit).To(BeZero())
		if version >= "0.4.0" {
			as("CHECK", `,"prevResult":`+out).succeeds(host)
		}
		as("DEL", `,"prevResult":`+out).succeeds(host)
		Expect(up(cont)).To(BeFalse())
	},
		Entry("0.1.0", "0.1.0", result01), Entry("0.2.0", "0.2.0", result01),
		Entry("0.3.0", "0.3.0", result03), Entry("0.3.1", "0.3.1", result03), Entry("0.4.0", "0.4.0", result03),
		Entry("1.0.0", "1.0.0", result1), Entry("1.1.0", "1.1.0", result1),
	)

	It("serves lo whatever CNI_IFNAME says", func() {
		c.ifName = "eth0"
		Expect(c.succeeds(host)).To(ContainSubstring(`"name": "lo"`))
		Expect(up(cont)).To(BeTrue())
		d := del(cont.Path)
		d.succeeds(host)
		Expect(up(cont)).To(BeFalse())
	})

	It("takes lo as it is, with service addresses and link-local ones", func() {
		for _, addr := range []string{"10.96.0.10/32", "192.0.2.1/24", "fe80::1/64", "2001:db8::1/128"} {
			cont.Cmd("ip", "addr", "add", addr, "dev", "lo")
		}
		out := c.succeeds(host)
		Expect(out).To(ContainSubstring("127.0.0.1/8"))
		Expect(out).NotTo(Or(ContainSubstring("10.96"), ContainSubstring("2001"), ContainSubstring("fe80")))
		as("CHECK", `,"prevResult":`+out).succeeds(host)
	})

	It("leaves lo up that was up before", func() {
		cont.Cmd("ip", "link", "set", "lo", "up")
		before := cont.Snapshot()
		out := c.succeeds(host)
		as("CHECK", `,"prevResult":`+out).succeeds(host)
		as("DEL", `,"prevResult":`+out).succeeds(host)
		Expect(up(cont)).To(BeTrue())
		Expect(cont.Snapshot()).To(Equal(before))
	})

	It("may be added again, and is taken down by the DEL that follows", func() {
		before := cont.Snapshot("links")
		c.succeeds(host)
		c.succeeds(host)
		del(cont.Path).succeeds(host)
		Expect(cont.Snapshot("links")).To(Equal(before))
	})

	It("passes the result of the plugin before it on", func() {
		prev := `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],
			"ips":[{"interface":0,"address":"10.1.0.2/24"}]}`
		Expect(as("ADD", `,"prevResult":`+prev).succeeds(host)).To(MatchJSON(prev))
		Expect(up(cont)).To(BeTrue())
		as("CHECK", `,"prevResult":`+prev).succeeds(host)
		as("DEL", `,"prevResult":`+prev).succeeds(host)
		Expect(up(cont)).To(BeFalse())
	})

	It("takes lo down again when nobody takes the result", Label("add-fails"), func() {
		before := cont.Snapshot("links")
		c.stdout = BrokenPipe{}
		code, _ := c.run(host)
		Expect(code).To(Equal(1))
		Expect(cont.Snapshot("links")).To(Equal(before))
	})

	It("CHECK finds lo down, and addresses that are gone", func() {
		prev := `,"prevResult":` + c.succeeds(host)
		as("CHECK", "").succeeds(host)
		cont.Cmd("ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
		Expect(as("CHECK", prev).fails(host, cni.CodeDrift)).To(ContainSubstring("127.0.0.1/8"))
		cont.Cmd("ip", "addr", "add", "127.0.0.1/8", "dev", "lo")
		as("CHECK", prev).succeeds(host)
		cont.Cmd("ip", "link", "set", "lo", "down")
		Expect(as("CHECK", prev).fails(host, cni.CodeDrift)).To(ContainSubstring(`"lo"`))
	})

	It("DEL succeeds in every form, and takes nobody else's lo down", Label("del"), func() {
		c.succeeds(host)
		other := nstest.NewNetns()
		other.Cmd("ip", "link", "set", "lo", "up")
		for _, path := range []string{"", "/run/netns/gone", "/bin/sh", "/proc/thread-self/ns/net", other.Path} {
			del(path).succeeds(host)
		}
		Expect(up(other) && up(cont) && up(host)).To(BeTrue())
		as("DEL", `,"prevResult":{"ips":5}`).succeeds(host)
		Expect(up(cont)).To(BeFalse())
		del(cont.Path).succeeds(host)
		untouched := nstest.NewNetns()
		del(untouched.Path).succeeds(host)
	})

	It("does not leave another attachment's lo down", func() {
		c.succeeds(host)
		d := del(cont.Path)
		d.ifName = "eth0"
		d.succeeds(host)
		Expect(up(cont)).To(BeTrue())
	})

	DescribeTable("refuses a namespace that is none", func(path string, code uint) {
		c.netns = path
		Expect(c.fails(host, code)).To(ContainSubstring("CNI_NETNS"))
	},
		Entry("nowhere", "/run/netns/gone", cni.CodeUnknownContainer),
		Entry("a file", "/bin/sh", cni.CodeEnvironment),
		Entry("the host's", "/proc/thread-self/ns/net", cni.CodeEnvironment),
	)

	It("has nothing to collect and nothing that it could miss", func() {
		c.succeeds(host)
		as("GC", `,"cni.dev/valid-attachments":[]`).succeeds(host)
		as("STATUS", "").succeeds(host)
		Expect(up(cont)).To(BeTrue())
		as("GC", "").succeeds(host) // the caller gave no list
	})
})

const (
	result01 = `{"cniVersion":"VERSION","ip4":{"ip":"127.0.0.1/8"},"ip6":{"ip":"::1/128"},"dns":{}}`
	result03 = `{"cniVersion":"VERSION","interfaces":[{"name":"lo","mac":"00:00:00:00:00:00","sandbox":"NETNS"}],
		"ips":[{"version":"4","interface":0,"address":"127.0.0.1/8"},
			{"version":"6","interface":0,"address":"::1/128"}],"dns":{}}`
	result1 = `{"cniVersion":"VERSION","interfaces":[{"name":"lo","mac":"00:00:00:00:00:00","sandbox":"NETNS"}],
		"ips":[{"interface":0,"address":"127.0.0.1/8"},{"interface":0,"address":"::1/128"}]}`
)

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(plugin()) })

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"lo","type":"loopback","cni.dev/valid-attachments":[]}`,
			`{"cniVersion":"0.3.1","name":"lo","prevResult":{"ips":[{"version":"4","address":"127.0.0.1/8"}]}}`,
			`{"cniVersion":"1.0.0","name":"lo","prevResult":{"cniVersion":"1.0.0",
				"interfaces":[{"name":"lo","mac":"00:00:00:00:00:00","sandbox":"` +
				FuzzNetns + `"}],"ips":[{"address":"127.0.0.1/8","interface":0},{"address":"::1/128","interface":0}]}}`,
			`{"name":"lo"}`,
		},
	}.Run(f)
}
