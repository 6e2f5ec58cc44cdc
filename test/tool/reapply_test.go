package tool_test

import (
	"context"
	"io"
	"net"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// check is what libcni's CHECK says of a container.
func (m *machine) check(p *pod) (err error) {
	m.Do(func() { err = m.cni.CheckNetworkList(context.Background(), m.list, p.rt) })
	return err
}

// download is a connection through a host port that sends back what it gets.
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

	DescribeTable("makes again what somebody flushed, under a connection that survives",
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
			Expect(m.says("reapply", "web-0")).To(ContainSubstring("made again"))
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

	It("says what of the reference's it cannot make again, and makes the rest", func() {
		m := newMachine(nstest.Newest().Dir(), usual)
		m.up(newPod("c1c1", "web-0", hostPort(8080, 80)))
		Expect(m.says("reapply")).To(Equal("Nothing is missing.\n"))
		m.Cmd("sh", "-c", "nft flush ruleset")
		out := m.hawser("reapply", "c1c1")
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stderr).To(ContainSubstring("the reference's bridge cannot make its masquerade again"))
		Expect(out.Stdout).To(ContainSubstring("portmap: made again"), out.Stderr)
	})

	It("names a container that is not there", func() {
		m := newMachine(ours(), usual)
		out := m.hawser("reapply", "c1c1")
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stderr).To(ContainSubstring(`no container "c1c1" that lives`))
	})
})
