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

// everything is a configuration that uses all that can be used together here.
func everything(more ...Object) Object {
	return l3(append([]Object{{"isDefaultGateway": true, "ipMasq": true, "macspoofchk": true, "hairpinMode": true, "portIsolation": true, "mtu": 1400}}, more...)...)
}

// owned is a table that nobody but the nft process which made it may change.
func (w *world) owned(table string) {
	GinkgoHelper()
	// One process, that ends when it is killed.
	w.Start(nstest.Program{Path: "sh", Args: []string{"-c", `mkfifo "$0/in"; exec 3<>"$0/in"; echo "add table $1 { flags owner; }" >&3; exec nft -i <&3`, w.Dir, table}})
	Eventually(func() string { return w.Cmd("nft", "list", "tables") }, nstest.Patience(5*time.Second)).Should(ContainSubstring(table))
}

func soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(2*time.Second))
	DeferCleanup(cancel)
	return ctx
}

// failure is a way for ADD to fail.
type failure struct {
	prepare func(w *world, cont *nstest.Host)
	change  func(c *Call)
	code    uint
	says    string
	calls   []string // of IPAM
}

var (
	both = []string{"ADD two eth0", "DEL two eth0"}
	none = []string{}
)

func answers(result string) func(*world, *nstest.Host) {
	return func(w *world, _ *nstest.Host) { w.Lend(result, "two") }
}

func does(body string) func(*world, *nstest.Host) {
	return func(w *world, _ *nstest.Host) { w.On("ADD", body, "two") }
}

func lends(addrs ...string) func(*world, *nstest.Host) { return answers(Lease(addrs...)) }

func keys(more Object) func(*Call) { return func(c *Call) { c.Conf = everything(more) } }

var _ = Describe("a failing ADD leaves the host and the container as they were", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	DescribeTable("when", func(f failure) {
		live := w.settle(w.Attach("live", everything(), "10.1.0.2/24", "2001:db8:1::2/64"))
		cont := nstest.NewNetns()
		w.LendAddrs("two", "10.1.0.3/24", "2001:db8:1::3/64")
		c := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: everything()}
		if f.prepare != nil {
			f.prepare(w, cont)
		}
		if f.change != nil {
			f.change(&c)
		}
		w.Calls()
		before, inside := w.Snapshot(), cont.Snapshot()
		Expect(w.Fails(c, f.code)).To(ContainSubstring(f.says))
		Expect(w.Calls()).To(Equal(f.calls))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(settings(cont.Snapshot())).To(Equal(settings(inside)))
		Expect(Ping(live.Host, "10.1.0.1") && Ping(live.Host, "2001:db8:1::1")).To(BeTrue())
	},
		Entry("the namespace is not there", failure{change: func(c *Call) { c.Netns = "/run/netns/none" }, code: cni.CodeUnknownContainer, says: "CNI_NETNS", calls: none}),
		Entry("CNI_NETNS is no namespace", failure{change: func(c *Call) { c.Netns = "/bin/sh" }, code: cni.CodeEnvironment, says: "CNI_NETNS", calls: none}),
		Entry("CNI_NETNS is the host's", failure{prepare: func(w *world, _ *nstest.Host) { Expect(os.Symlink(w.Path, w.Dir+"/own")).To(Succeed()) },
			change: func(c *Call) { c.Netns = "/proc/thread-self/ns/net" }, code: cni.CodeEnvironment, says: "CNI_NETNS", calls: none}),
		Entry("the configuration is bad", failure{change: keys(Object{"mtu": 5}), code: cni.CodeConfig, says: "mtu: 5", calls: none}),
		Entry("the interface is there", failure{prepare: func(_ *world, cont *nstest.Host) { IP(cont, "link add eth0 type veth peer name x") },
			code: cni.CodeExists, says: `"eth0"`, calls: none}),
		Entry("the host end's names are taken", failure{prepare: func(w *world, _ *nstest.Host) {
			for i, name := range iface.HostNames(cni.Attachment{Network: "net", ContainerID: "two", IfName: "eth0"}) {
				IP(w.Host, "link add %s type veth peer name other%d", name, i)
			}
		}, code: cni.CodeConflict, says: "veth", calls: none}),
		Entry("the IPAM plugin is not there", failure{change: keys(Object{"ipam": Object{"type": "nowhere"}, "bridge": "unmade"}), code: cni.CodeEnvironment, says: `no plugin "nowhere"`, calls: none}),
		Entry("the IPAM plugin's name is a path", failure{change: keys(Object{"ipam": Object{"type": "../fake"}}), code: cni.CodeConfig, says: `"../fake"`, calls: none}),
		Entry("IPAM gives no addresses", failure{prepare: answers(`{"cniVersion":"1.1.0","ips":[]}`), code: cni.CodeIPAM, says: "fake", calls: both}),
		Entry("IPAM prints nothing", failure{prepare: does("exit 0"), code: cni.CodeIPAM, says: "fake", calls: both}),
		Entry("IPAM prints garbage", failure{prepare: answers(`{"ips":[{"addr`), code: cni.CodeIPAM, says: "fake", calls: both}),
		Entry("IPAM prints a list", failure{prepare: answers(`[]`), code: cni.CodeIPAM, says: "fake", calls: both}),
		Entry("IPAM prints an address that is none", failure{prepare: answers(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.3"}]}`), code: cni.CodeIPAM, says: `"10.1.0.3"`, calls: both}),
		Entry("IPAM speaks an unknown version", failure{prepare: answers(`{"cniVersion":"9.9.9","ips":[{"address":"10.1.0.3/24"}]}`), code: cni.CodeIPAM, says: "9.9.9", calls: both}),
		Entry("IPAM is killed", failure{prepare: does("echo dying >&2; kill -9 $$"), code: cni.CodeInternal, says: "dying", calls: both}),
		Entry("IPAM fails without a word", failure{prepare: does("exit 3"), code: cni.CodeInternal, says: "fake", calls: both}),
		Entry("IPAM refuses, with its code", failure{prepare: does(Refusal), code: 11, says: "later\npool", calls: both}),
		Entry("IPAM hangs", failure{prepare: does("exec sleep 1000"), change: func(c *Call) { c.Ctx = soon() }, code: cni.CodeTryAgain, says: "fake", calls: both}),
		Entry("IPAM refuses, and its DEL too", failure{prepare: func(w *world, _ *nstest.Host) {
			w.On("ADD", Refusal, "two")
			w.On("DEL", "echo broken >&2; exit 1", "two")
		}, code: 11, says: "release the addresses", calls: both}),
		Entry("the bridge has another address", failure{prepare: lends("10.2.0.3/24"), code: cni.CodeConflict, says: "10.1.0.1/24", calls: both}),
		Entry("there is no room for a gateway", failure{prepare: lends("10.1.0.3/32"), code: cni.CodeIPAM, says: "10.1.0.3/32", calls: both}),
		Entry("the kernel refuses an address", failure{prepare: lends("10.1.0.3/24", "ff05::3/64 2001:db8:1::1"), code: cni.CodeInternal, says: "ff05::3/64", calls: both}),
		Entry("the kernel refuses a route", failure{prepare: answers(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.3/24"}],"routes":[{"dst":"10.9.0.0/16","gw":"10.77.0.1"}]}`),
			code: cni.CodeInternal, says: "10.9.0.0/16", calls: both}),
	)

	DescribeTable("when a table is in the way", func(table string) {
		w.owned(table)
		w.settle(w.Attach("live", conf(Object{"macspoofchk": table != "bridge hawser"})))
		cont := nstest.NewNetns()
		w.LendAddrs("two", "10.1.0.3/24")
		before := w.Snapshot("links", "nftables")
		says := w.Fails(Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: everything(Object{"isDefaultGateway": nil})}, cni.CodeInternal)
		Expect(says).To(ContainSubstring("not permitted"))
		calls := w.Calls() // IPAM may have been ended before it could write down its ADD
		Expect(calls[len(calls)-1]).To(Equal("DEL two eth0"))
		Expect(w.Snapshot("links", "nftables")).To(Equal(before))
		Expect(Names(cont, "")).To(BeEmpty())
	},
		Entry("the masquerade's", "inet hawser"),
		Entry("macspoofchk's", "bridge hawser"),
	)

	It("when nobody takes the result", func() {
		w.settle(w.Attach("live", everything(), "10.1.0.2/24"))
		cont := nstest.NewNetns()
		w.LendAddrs("two", "10.1.0.3/24")
		w.Calls()
		before := w.Snapshot()
		c := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: everything(), Stdout: brokenPipe{}}
		a := w.Call(c)
		Expect(a.Code).To(Equal(1))
		Expect(a.Stderr).To(ContainSubstring("broken pipe"))
		Expect(w.Calls()).To(Equal(both))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(Names(cont, "")).To(BeEmpty())
		w.Run(nstest.Program{Path: "sh", Args: []string{"-c", "exec " + nstest.Build("bridge") + ">/dev/full"}, Env: c.Vars(w.World), Stdin: c.Stdin()})
		Expect(w.Calls()).To(Equal(both))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(Names(cont, "")).To(BeEmpty())
	})

	It("when it is told to stop while IPAM works", func() {
		w.settle(w.Attach("live", everything(), "10.1.0.2/24"))
		w.On("ADD", "touch $d/started; exec sleep 1000", "two")
		cont := nstest.NewNetns()
		w.Calls()
		before := w.Snapshot()
		c := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: everything()}
		cmd := w.Start(nstest.Program{Path: nstest.Build("bridge"), Env: c.Vars(w.World), Stdin: c.Stdin()})
		Eventually(w.Dir+"/started", nstest.Patience(5*time.Second)).Should(BeAnExistingFile())
		Expect(cmd.Process.Signal(os.Interrupt)).To(Succeed())
		Expect(cmd.Wait()).To(HaveOccurred())
		Expect(w.Calls()).To(Equal(both))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(Names(cont, "")).To(BeEmpty())
	})

	It("but the bridge, which is shared", func() {
		w.On("ADD", Refusal)
		cont := nstest.NewNetns()
		w.Fails(Call{Command: "ADD", Netns: cont.Path, Conf: everything()}, 11)
		Expect(Names(w.Host, "")).To(Equal([]string{"br"}))
		Expect(w.Snapshot("nftables")).NotTo(ContainSubstring("elements"))
	})

	It("when it is the second of a live attachment", func() {
		a := w.settle(w.Attach("one", everything(), "10.1.0.2/24"))
		w.Calls()
		before, inside := w.Snapshot(), a.Snapshot()
		for _, c := range []Object{everything(), conf(), everything(Object{"ipMasqBackend": "iptables"})} {
			Expect(w.Fails(Call{Command: "ADD", Netns: a.Path, Conf: c}, cni.CodeExists)).To(ContainSubstring(`"eth0"`))
		}
		IP(a.Host, "link set eth0 name moved")
		w.Fails(Call{Command: "ADD", Netns: a.Path, Conf: everything()}, cni.CodeExists)
		other := nstest.NewNetns()
		w.Fails(Call{Command: "ADD", Netns: other.Path, Conf: everything()}, cni.CodeExists)
		IP(a.Host, "link set moved name eth0")
		Expect(w.Calls()).To(BeEmpty())
		Expect(w.Snapshot()).To(Equal(before))
		Expect(a.Snapshot()).To(Equal(inside))
	})
})

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// settings is a snapshot of a container without the values of interfaces in
// general, which an ADD may set for good.
func settings(snapshot string) string {
	var out []string
	for _, line := range strings.Split(snapshot, "\n") {
		if !strings.Contains(line, "/conf/lo/disable_ipv6") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}
