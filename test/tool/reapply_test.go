package tool_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// check returns the error of libcni's CHECK of a container.
func (m *machine) check(p *pod) (err error) {
	m.Do(func() { err = m.cni.CheckNetworkList(context.Background(), m.list, p.rt) })
	return err
}

// download opens a connection through a host port to a container that echoes.
func (m *machine) download(p *pod, port string) net.Conn {
	GinkgoHelper()
	var listener net.Listener
	p.Do(func() { listener = nstest.Must(net.Listen("tcp", ":80")) })
	DeferCleanup(listener.Close)
	go func() {
		if c, err := listener.Accept(); err == nil {
			_, _ = io.Copy(c, c)
		}
	}()
	var conn net.Conn
	m.Do(func() { conn = nstest.Must(net.Dial("tcp", "127.0.0.1:"+port)) })
	DeferCleanup(conn.Close)
	return conn
}

func echoes(conn net.Conn) {
	GinkgoHelper()
	Expect(conn.Write([]byte("more"))).To(Equal(4))
	Expect(nstest.Must(io.ReadAll(io.LimitReader(conn, 4)))).To(BeEquivalentTo("more"))
}

var _ = Describe("hawser reapply", Label("tool-reapply"), func() {
	masquerades := func(backend string) string {
		return strings.NewReplacer(`"ipMasq": true`, `"ipMasq": true, "ipMasqBackend": "`+backend+`"`,
			`"type": "portmap"`, `"type": "portmap", "backend": "`+backend+`"`,
			`"type": "firewall"`, `"type": "firewall", "backend": "`+backend+`"`).Replace(usual)
	}

	DescribeTable("restores flushed rules or sysctls while a connection survives",
		func(list, flush string) {
			nstest.Build("ptp")
			m := newMachine(ours(), list)
			p := m.up(newPod("c1c1", "web-0", hostPort(8080, 80)))
			conn := m.download(p, "8080")
			echoes(conn)
			look := "ip link show eth0; ip -4 addr show eth0" // the kernel's own address may still be tentative
			inside := p.Cmd("sh", "-c", look)
			links := m.Cmd("ip", "-br", "link")
			Expect(m.check(p)).To(Succeed())
			m.Cmd("sh", "-c", flush)
			Expect(m.check(p)).NotTo(Succeed())
			Expect(m.says("reapply", "web-0")).To(ContainSubstring(": restored"))
			Expect(m.check(p)).To(Succeed())
			echoes(conn)
			Expect(p.Cmd("sh", "-c", look)).To(Equal(inside))
			Expect(m.Cmd("ip", "-br", "link")).To(Equal(links))
			was := m.Snapshot() + m.Files("/run/hawser", "/var/lib/cni")
			Expect(m.says("reapply")).To(Equal("Nothing is missing.\n"))
			Expect(m.Snapshot() + m.Files("/run/hawser", "/var/lib/cni")).To(Equal(was))
		},
		Entry("nft flush ruleset", usual, "nft flush ruleset"),
		Entry("iptables -F", masquerades("iptables"), "iptables -F; iptables -t nat -F"),
		Entry("ptp's rules", strings.Replace(usual, `"type": "bridge", "bridge": "cni0", "isGateway": true`,
			`"type": "ptp"`, 1), "nft flush ruleset"),
		Entry("a check of MAC addresses", strings.Replace(usual, `"ipMasq": true`, `"macspoofchk": true`, 1),
			"nft flush ruleset"),
		Entry("a reset of sysctls", usual, "echo 0 >/proc/sys/net/ipv4/ip_forward"))

	It("restores the rules of a container whose names are too long for a mark", func() {
		m := newMachine(ours(), `{"cniVersion": "1.0.0", "name": "`+strings.Repeat("n", 70)+`", "plugins": [
			{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
			"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}}]}`)
		id := strings.Repeat("a", 64)
		p := m.up(newPod(id, "web-0"))
		Expect(asks[[]attachment](m, "ls")).To(ConsistOf(And(HaveField("ContainerID", id), HaveField("IfName", "eth0"),
			HaveField("Reference", false), HaveField("Holdings", HaveLen(3)))))
		Expect(m.says("doctor")).To(Equal("nothing is wrong\n"))
		m.Cmd("nft", "flush", "ruleset")
		Expect(m.says("reapply")).To(ContainSubstring(": restored"))
		Expect(m.check(p)).To(Succeed())
	})

	DescribeTable("distinguishes two interfaces of a container with names too long for a mark", func(length int) {
		m := newMachine(ours(), `{"cniVersion": "1.0.0", "name": "`+strings.Repeat("n", length)+`", "plugins": [
			{"type": "bridge", "bridge": "cni0", "isGateway": true,
			"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}}]}`)
		p := newPod(strings.Repeat("a", 64), "web-0")
		for _, name := range []string{"eth1", "eth10"} {
			p.rt.IfName = name
			m.up(p)
		}
		Expect(asks[[]attachment](m, "ls")).To(ConsistOf(
			And(HaveField("IfName", "eth1"), HaveField("Holdings", HaveLen(2))),
			And(HaveField("IfName", "eth10"), HaveField("Holdings", HaveLen(2)))))
	}, Entry("one of them", 41), Entry("both", 43))

	It("restores the translation of a flow whose first packet was sent while the rules were missing", func() {
		m := newMachine(ours(), usual)
		outside := nstest.NewOutside(m.Host)
		port := hostPort(8080, 80)
		port["protocol"] = "udp"
		p := m.up(newPod("c1", "web-0", port))
		m.SetSysctl("net/ipv4/ip_forward", "1")
		// As kube-proxy and watch do, another table keeps translation and connection tracking active.
		m.Cmd("nft", `table ip others { chain nat { type nat hook output priority 0; }; chain state {
			type filter hook output priority 0; ct state new accept; }; }`)
		var out, in net.Conn
		to := nstest.Must(net.ResolveUDPAddr("udp", outside.Serve("udp", "192.0.2.2:0")))
		p.Do(func() { out = nstest.Must(net.DialUDP("udp", nil, to)) })
		p.Serve("udp", ":80")
		outside.Do(func() { in = nstest.Must(net.Dial("udp", "192.0.2.1:8080")) })
		m.Cmd("nft", "delete", "table", "inet", "hawser")
		for _, c := range []net.Conn{out, in} {
			DeferCleanup(c.Close)
			Expect(c.Write([]byte("lost"))).To(Equal(4))
		}
		Eventually(func() string { return m.Cmd("conntrack", "-L", "-p", "udp") }).Should(And(
			ContainSubstring("dport=8080"), ContainSubstring("dst=192.0.2.2")))
		Expect(m.says("reapply")).To(ContainSubstring(": restored"))
		for _, c := range []net.Conn{out, in} {
			answer := make([]byte, 64)
			Eventually(func() error {
				_, _ = c.Write([]byte("again"))
				_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
				_, err := c.Read(answer)
				return err
			}).Should(Succeed())
		}
	})

	DescribeTable("finds the namespace if libcni recorded none, as before 1.2", func(
		plugins func() string, says string,
	) {
		m := newMachine(plugins(), usual)
		m.up(newPod("c1c1", "web-0", hostPort(8080, 80)))
		m.Cmd("sed", "-i", `s/"netns":"[^"]*",//`, "/var/lib/cni/results/pods-c1c1-eth0")
		Expect(m.Cmd("cat", "/var/lib/cni/results/pods-c1c1-eth0")).NotTo(ContainSubstring(`"netns"`))
		m.Cmd("sh", "-c", "nft flush ruleset")
		Expect(m.finds()).To(ContainElement(HaveField("ID", "drift")))
		Expect(m.says("metrics", "--check")).To(ContainSubstring(`hawser_check_drift{network="pods"} 1` + "\n"))
		out := m.hawser("reapply")
		for _, plugin := range []string{"bridge", "portmap", "firewall"} {
			Expect(out.Stdout).To(ContainSubstring(plugin+": "+says), out.Stderr)
		}
	},
		Entry("of Hawser", ours, "restored"),
		Entry("of the reference", Label("slow"), nstest.Newest().Dir, "failed: "))

	It("repairs an attachment of a list without CHECK", func() {
		m := newMachine(ours(), strings.Replace(usual, "1.0.0", "0.3.1", 1))
		m.up(newPod("c1c1", "web-0", hostPort(8080, 80)))
		whole := slices.Sorted(strings.Lines(m.Snapshot("nftables")))
		Expect(m.says("reapply")).To(Equal("Nothing is missing.\n"))
		m.Cmd("nft", "flush", "ruleset")
		Expect(m.says("reapply")).To(ContainSubstring("portmap: restored"))
		Expect(slices.Sorted(strings.Lines(m.Snapshot("nftables")))).To(Equal(whole))
	})

	It("does not change the records of failed calls, nor do doctor and metrics", func() {
		m := newMachine(ours(), usual)
		for i := range 22 {
			m.up(newPod(fmt.Sprintf("c%03d", i), fmt.Sprintf("web-%d", i), hostPort(8080+i, 80)))
		}
		Expect(m.add(newPod("bad0", "web-bad", hostPort(8080, 80)))).NotTo(Succeed())
		was := m.Files("/run/hawser/failures")
		for _, args := range [][]string{{"doctor"}, {"metrics", "--check"}, {"reapply"}} {
			m.Cmd("nft", "flush", "ruleset")
			m.hawser(args...)
			Expect(m.Files("/run/hawser/failures")).To(Equal(was), args[0])
		}
		Expect(asks[[]failure](m, "why", "last")).To(ConsistOf(HaveField("Pod", "shop/web-bad")))
	})

	DescribeTable("restores nothing for a healthy container, even if the reference's CHECK fails", func(
		list, change string, says types.GomegaMatcher,
	) {
		m := newMachine(nstest.Newest().Dir(), list)
		p := m.up(newPod("c1c1", "web-0"))
		m.Cmd("sh", "-c", change)
		Expect(m.check(p)).To(says)
		was := m.Snapshot() + m.Files("/run", "/var/lib/cni")
		Expect(m.finds()).To(Or(BeEmpty(), HaveEach(HaveField("ID", "changed-mac"))))
		Expect(m.says("reapply")).To(Equal("Nothing is missing.\n"))
		Expect(m.Snapshot() + m.Files("/run", "/var/lib/cni")).To(Equal(was))
	},
		Entry("a bridge without IPAM", `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
			{"type": "bridge", "bridge": "cni0"}]}`, "", Succeed()),
		Entry("a bridge with another MAC address", usual, "ip link set cni0 address 02:00:00:00:00:07", HaveOccurred()),
		Entry("a sysctl of several values", strings.Replace(usual, `{"type": "firewall"}`,
			`{"type": "tuning", "sysctl": {"net.ipv4.ip_local_port_range": "20000 30000"}}`, 1), "", HaveOccurred()))

	It("prints only once under watch what it cannot repair", func() {
		m := newMachine(nstest.Newest().Dir(), usual)
		m.up(newPod("c1c1", "web-0"))
		m.Cmd("sh", "-c", "nft flush ruleset; echo { >/var/lib/cni/results/x")
		watching, said := m.starts("watch", "--every", "1s", "--file", "/run/x.prom")
		pass := func() string { return m.Cmd("sh", "-c", "stat -c %i.%Z /run/x.prom || true") }
		once := []string{"bridge: cannot be restored: the reference plugin", "damaged: ", "metrics: "}
		for _, what := range once {
			Eventually(said).Should(ContainSubstring(what))
		}
		for range 3 {
			Eventually(pass).ShouldNot(Equal(pass()))
		}
		Expect(watching.Process.Signal(syscall.SIGTERM)).To(Succeed())
		Expect(watching.Wait()).To(Succeed())
		for _, what := range once {
			Expect(strings.Count(said(), what)).To(Equal(1), said())
		}
		Expect(m.Cmd("cat", "/run/x.prom")).To(ContainSubstring(`hawser_check_drift{network="pods"} 1` + "\n"))
	})

	It("restores nothing of the reference, because a flush cannot be distinguished from a DEL that has begun", func() {
		m := newMachine(nstest.Newest().Dir(), usual)
		m.up(newPod("c1c1", "web-0", hostPort(8080, 80)))
		Expect(m.says("reapply")).To(Equal("Nothing is missing.\n"))
		m.Cmd("sh", "-c", "nft flush ruleset")
		out := m.hawser("reapply", "c1c1")
		Expect(out.Exit).To(Equal(1))
		for _, plugin := range []string{"bridge", "portmap", "firewall"} {
			Expect(out.Stderr).To(ContainSubstring(plugin + ": cannot be restored: the reference plugin"))
		}
		Expect(m.Cmd("nft", "list", "ruleset")).To(BeEmpty())
	})

	DescribeTable("does not change host ports while the bridge is down", func(plugins func() string) {
		m := newMachine(plugins(), usual)
		nstest.NewOutside(m.Host)
		m.IP("route add default via 192.0.2.2")
		m.up(newPod("c1c1", "web-0", hostPort(8080, 80)))
		was := m.Files("/run/hawser") + strings.Join(m.rules(), "")
		m.IP("link set cni0 down")
		out := m.hawser("reapply")
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stdout).To(ContainSubstring("portmap: failed: left unchanged until the interface is complete: "))
		m.IP("link set cni0 up")
		Expect(m.Files("/run/hawser") + strings.Join(m.rules(), "")).To(Equal(was))
		Expect(m.Sysctl("net/ipv4/conf/ext/route_localnet")).To(Equal("0"))
		Expect(m.says("reapply")).To(Equal("Nothing is missing.\n"))
	}, Entry("of Hawser", ours), Entry("of the reference", Label("slow"), nstest.Newest().Dir))

	It("names a container that does not exist", func() {
		m := newMachine(ours(), usual)
		out := m.hawser("reapply", "c1c1")
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stderr).To(ContainSubstring(`no live container "c1c1"`))
	})
})
