package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// failure is a way for ADD to fail.
type failure struct {
	prepare func(w *World, cont *nstest.Host)
	change  func(c *Call)
	code    uint
	says    string
	calls   []string // of IPAM
}

var (
	both = []string{"ADD two eth0", "DEL two eth0"}
	none = []string{}
)

func answers(result string) func(*World, *nstest.Host) {
	return func(w *World, _ *nstest.Host) { w.Lend(result, "two") }
}

func does(body string) func(*World, *nstest.Host) {
	return func(w *World, _ *nstest.Host) { w.On("ADD", body, "two") }
}

func lends(addrs ...string) func(*World, *nstest.Host) { return answers(Lease(addrs...)) }

func keys(more Object) func(*Call) { return func(c *Call) { c.Conf = everything(more) } }

func soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(2*time.Second))
	DeferCleanup(cancel)
	return ctx
}

// untouched is a snapshot of a container without a value that an ADD may set for
// good, since others of the container share it.
func untouched(h *nstest.Host) string {
	GinkgoHelper()
	var out []string
	for _, line := range strings.Split(h.Snapshot(), "\n") {
		if !strings.Contains(line, "/conf/lo/disable_ipv6") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

var _ = Describe("a failing ADD leaves the host and the container as they were", func() {
	var w *World
	var live Attached
	BeforeEach(func() {
		w = newWorld()
		live = settle(w, w.Attach("live", everything(), nth(2)...))
		w.Calls()
	})

	DescribeTable("when", func(f failure) {
		cont := nstest.NewNetns()
		w.LendAddrs("two", nth(3)...)
		c := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: everything()}
		if f.prepare != nil {
			f.prepare(w, cont)
		}
		if f.change != nil {
			f.change(&c)
		}
		before, inside := w.Snapshot(), untouched(cont)
		says := w.Fails(c, f.code)
		Expect(says).To(ContainSubstring(f.says))
		Expect(strings.Contains(says, "roll-back")).To(Equal(strings.Contains(f.says, "release")), says)
		Expect(w.Calls()).To(Equal(f.calls))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(untouched(cont)).To(Equal(inside))
		Expect(alive(live)).To(BeTrue())
	},
		Entry("the namespace is not there", failure{change: func(c *Call) { c.Netns = "/run/netns/none" }, code: cni.CodeUnknownContainer, says: "CNI_NETNS", calls: none}),
		Entry("CNI_NETNS is no namespace", failure{change: func(c *Call) { c.Netns = "/proc/version" }, code: cni.CodeEnvironment, says: "CNI_NETNS", calls: none}),
		Entry("CNI_NETNS is the host's", failure{change: func(c *Call) { c.Netns = "/proc/thread-self/ns/net" }, code: cni.CodeEnvironment, says: "CNI_NETNS", calls: none}),
		Entry("the configuration is bad", failure{change: keys(Object{"mtu": 5}), code: cni.CodeConfig, says: "mtu: 5", calls: none}),
		Entry("there is no ipam", failure{change: keys(Object{"ipam": nil}), code: cni.CodeConfig, says: "ipam.type", calls: none}),
		Entry("the interface is there", failure{prepare: func(_ *World, cont *nstest.Host) { IP(cont, "link add eth0 type veth peer name x") },
			code: cni.CodeExists, says: `"eth0"`, calls: none}),
		Entry("the host end's names are taken", failure{prepare: func(w *World, _ *nstest.Host) {
			for _, name := range iface.HostNames(cni.Attachment{Network: "net", ContainerID: "two", IfName: "eth0"}) {
				IP(w.Host, "link add %s type veth peer name %s", name, strings.Replace(name, "veth", "peer", 1))
			}
		}, code: cni.CodeConflict, says: "veth", calls: none}),
		Entry("the IPAM plugin is not there", failure{change: keys(Object{"ipam": Object{"type": "nowhere"}}), code: cni.CodeEnvironment, says: `no plugin "nowhere"`, calls: none}),
		Entry("the IPAM plugin's name is a path", failure{change: keys(Object{"ipam": Object{"type": "../fake"}}), code: cni.CodeConfig, says: `"../fake"`, calls: none}),
		Entry("IPAM gives no addresses", failure{prepare: answers(`{"cniVersion":"1.1.0","ips":[]}`), code: cni.CodeIPAM, says: `"fake"`, calls: both}),
		Entry("IPAM gives an address without a gateway", failure{prepare: lends("10.1.0.3/24"), code: cni.CodeIPAM, says: `"fake": address 10.1.0.3/24: has no gateway`, calls: both}),
		Entry("IPAM gives a second address without a gateway", failure{prepare: lends(nth(3)[0], "2001:db8:1::3/64"), code: cni.CodeIPAM, says: "2001:db8:1::3/64", calls: both}),
		Entry("IPAM gives a gateway of the other family", failure{prepare: lends("10.1.0.3/24 2001:db8:1::1"), code: cni.CodeIPAM, says: "10.1.0.3/24", calls: both}),
		Entry("IPAM gives an address twice", failure{prepare: lends(nth(3)[0], nth(3)[0]), code: cni.CodeIPAM, says: "10.1.0.3 twice", calls: both}),
		Entry("IPAM prints nothing", failure{prepare: does("exit 0"), code: cni.CodeIPAM, says: "fake", calls: both}),
		Entry("IPAM prints garbage", failure{prepare: answers(`{"ips":[{"addr`), code: cni.CodeIPAM, says: "fake", calls: both}),
		Entry("IPAM prints a list", failure{prepare: answers(`[]`), code: cni.CodeIPAM, says: "fake", calls: both}),
		Entry("IPAM prints an address that is none", failure{prepare: lends("10.1.0.3 10.1.0.1"), code: cni.CodeIPAM, says: `"10.1.0.3"`, calls: both}),
		Entry("IPAM prints a gateway that is none", failure{prepare: lends("10.1.0.3/24 gw"), code: cni.CodeIPAM, says: `"gw"`, calls: both}),
		Entry("IPAM speaks an unknown version", failure{prepare: answers(`{"cniVersion":"9.9.9","ips":[{"address":"10.1.0.3/24"}]}`), code: cni.CodeIPAM, says: "9.9.9", calls: both}),
		Entry("IPAM is killed", failure{prepare: does("echo dying >&2; kill -9 $$"), code: cni.CodeInternal, says: "dying", calls: both}),
		Entry("IPAM fails without a word", failure{prepare: does("exit 3"), code: cni.CodeInternal, says: "fake", calls: both}),
		Entry("IPAM refuses, with its code", failure{prepare: does(Refusal), code: 11, says: "later\npool", calls: both}),
		Entry("IPAM hangs", failure{prepare: does("exec sleep 1000"), change: func(c *Call) { c.Ctx = soon() }, code: cni.CodeTryAgain, says: "fake", calls: both}),
		Entry("IPAM refuses, and its DEL too", failure{prepare: func(w *World, _ *nstest.Host) {
			w.On("ADD", Refusal, "two")
			w.On("DEL", "echo broken >&2; exit 1", "two")
		}, code: 11, says: "release the addresses", calls: both}),
		Entry("the kernel refuses an address of the container", failure{prepare: lends(nth(3)[0], "ff05::3/64 2001:db8:1::1"), code: cni.CodeInternal, says: "ff05::3/64", calls: both}),
		Entry("IPAM prints a gateway with a zone", failure{prepare: lends("2001:db8:1::3/64 fe80::1%eth0"), code: cni.CodeIPAM, says: "fe80::1%eth0", calls: both}),
		Entry("the kernel refuses a route of IPAM", failure{prepare: answers(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.3/24","gateway":"10.1.0.1"}],"routes":[{"dst":"10.9.0.0/16","gw":"10.77.0.1"}]}`),
			code: cni.CodeInternal, says: "10.9.0.0/16", calls: both}),
		Entry("a route of IPAM makes no sense", failure{prepare: answers(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.3/24","gateway":"10.1.0.1"}],"routes":[{"dst":"10.9.0.0/16","scope":256}]}`),
			code: cni.CodeIPAM, says: "routes[0].scope: 256", calls: both}),
	)

	It("when the table of the masquerade is somebody else's", func() {
		w := newWorld()
		// One process, that ends when it is killed.
		w.Start(nstest.Program{Path: "sh", Args: []string{"-c", `mkfifo "$0/in"; exec 3<>"$0/in"; echo "add table inet hawser { flags owner; }" >&3; exec nft -i <&3`, w.Dir}})
		Eventually(func() string { return w.Cmd("nft", "list", "tables") }, nstest.Patience(5*time.Second)).Should(ContainSubstring("hawser"))
		settle(w, w.Attach("live", conf(), nth(2)...))
		w.Calls()
		cont := nstest.NewNetns()
		w.LendAddrs("two", nth(3)...)
		before := w.Snapshot()
		Expect(w.Fails(Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: everything()}, cni.CodeInternal)).To(ContainSubstring("not permitted"))
		Expect(w.Calls()).To(Equal(both))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(Names(cont, "")).To(BeEmpty())
	})

	It("when nobody takes the result", func() {
		cont := nstest.NewNetns()
		w.LendAddrs("two", nth(3)...)
		before := w.Snapshot()
		c := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: everything(), Stdout: brokenPipe{}}
		a := w.Call(c)
		Expect(a.Code).To(Equal(1))
		Expect(a.Stderr).To(ContainSubstring("broken pipe"))
		Expect(w.Calls()).To(Equal(both))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(Names(cont, "")).To(BeEmpty())
		w.Run(c.Program(w, "sh", "-c", "exec "+nstest.Build("ptp")+">/dev/full"))
		Expect(w.Calls()).To(Equal(both))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(Names(cont, "")).To(BeEmpty())
	})

	It("when it is told to stop while IPAM works", func() {
		w.On("ADD", "touch $d/started; exec sleep 1000", "two")
		cont := nstest.NewNetns()
		before := w.Snapshot()
		c := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: everything()}
		cmd := w.Start(c.Program(w, nstest.Build("ptp")))
		Eventually(w.Dir+"/started", nstest.Patience(5*time.Second)).Should(BeAnExistingFile())
		Expect(cmd.Process.Signal(os.Interrupt)).To(Succeed())
		Expect(cmd.Wait()).To(HaveOccurred())
		Expect(w.Calls()).To(Equal(both))
		Expect(w.Snapshot()).To(Equal(before))
	})

	It("when it is the second of a live attachment", func() {
		before, inside := w.Snapshot(), live.Snapshot()
		other := nstest.NewNetns()
		again := func(path string, c Object) {
			GinkgoHelper()
			w.Fails(Call{Command: "ADD", ID: "live", Netns: path, Conf: c}, cni.CodeExists)
			Expect(w.Calls()).To(BeEmpty())
		}
		again(live.Path, everything())
		again(live.Path, everything(Object{"ipMasqBackend": "iptables", "mtu": nil}))
		again(other.Path, everything())
		Expect(Names(other, "")).To(BeEmpty())
		Expect(w.Snapshot()).To(Equal(before))
		Expect(live.Snapshot()).To(Equal(inside))
		IP(live.Host, "link set eth0 down")
		IP(live.Host, "link set eth0 name moved")
		again(live.Path, everything())
		Expect(Names(live.Host, "")).To(Equal([]string{"moved"}))
	})
})

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }
