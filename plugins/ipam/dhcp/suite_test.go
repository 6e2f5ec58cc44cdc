package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestDHCP(t *testing.T) { nstest.RunSpecs(t, "plugins/ipam/dhcp") }

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(plugin()) })

// lan is a host whose containers are on a network of their own, with a DHCP server.
type lan struct {
	*World
	server *nstest.Host // its br0 has 10.9.0.1/24, and a port for each container
	socket string
	keys   string     // more keys of ipam, as JSON
	passed []*os.File // to the daemon
	ports  int
}

func newLAN() *lan {
	GinkgoHelper()
	l := &lan{World: NewWorld(plugin()), server: nstest.NewHost()}
	l.socket = filepath.Join(GinkgoT().TempDir(), "dhcp.sock")
	l.server.IP("link add br0 type bridge", "addr add 10.9.0.1/24 dev br0", "link set br0 up")
	return l
}

// container makes one with eth0 on the network.
func (l *lan) container() *nstest.Host {
	GinkgoHelper()
	c := nstest.NewNetns()
	l.plug(c, "eth0")
	return c
}

// plug gives a container an interface, which is down.
func (l *lan) plug(c *nstest.Host, name string) {
	GinkgoHelper()
	l.ports++
	l.server.IP(fmt.Sprintf("link add port%d type veth peer name %s netns %s", l.ports, name, c.Name),
		fmt.Sprintf("link set port%d up master br0", l.ports))
}

// call is a call for a container's eth0.
func (l *lan) call(command string, c *nstest.Host) Call {
	keys := l.keys
	if keys != "" {
		keys = ", " + keys
	}
	return Call{Command: command, Netns: c.Path, ID: c.Name, Conf: fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net",
		"type": "bridge", "ipam": {"type": "dhcp", "daemonSocketPath": %q%s}}`, l.socket, keys)}
}

// at is a call that has a container's namespace at another path.
func (l *lan) at(netns, command string, c *nstest.Host) Call {
	call := l.call(command, c)
	call.Netns = netns
	return call
}

// with is a call with one more key of the network.
func (l *lan) with(command string, c *nstest.Host, key, value string) Call {
	call := l.call(command, c)
	call.Conf = fmt.Sprintf("%s, %q: %s}", strings.TrimSuffix(call.Conf.(string), "}"), key, value)
	return call
}

// after is a call with a result as prevResult.
func (l *lan) after(command string, c *nstest.Host, r Result) Call {
	return l.with(command, c, "prevResult", r.Text)
}

// gc is a GC with a list of valid attachments, as JSON.
func (l *lan) gc(valid string) Call {
	return l.with("GC", l.Host, "cni.dev/valid-attachments", valid)
}

// daemonRun is a running "dhcp daemon".
type daemonRun struct {
	*exec.Cmd
	log   *gbytes.Buffer
	ended chan struct{}
}

// launch starts the daemon by bash, after words of it.
func (l *lan) launch(before string, args ...string) *daemonRun {
	GinkgoHelper()
	args = append([]string{"-c", before + ` exec "$0" "$@"`, nstest.Build("dhcp"), "daemon"}, args...)
	d := &daemonRun{exec.Command("bash", args...), gbytes.NewBuffer(), make(chan struct{})}
	d.Stderr, d.ExtraFiles = io.MultiWriter(d.log, GinkgoWriter), l.passed
	l.Do(func() { Expect(d.Start()).To(Succeed()) })
	go func() {
		defer close(d.ended)
		_ = d.Wait()
	}()
	DeferCleanup(d.end, syscall.SIGKILL)
	return d
}

// start starts the daemon on the network's socket, and waits until it serves.
func (l *lan) start(args ...string) *daemonRun {
	GinkgoHelper()
	d := l.launch("", append([]string{"-socketpath", l.socket}, args...)...)
	Eventually(d.log).Should(gbytes.Say("serving"))
	return d
}

// begin starts a server and the daemon.
func (l *lan) begin(more ...dhcpv4.Modifier) (*server, *daemonRun) {
	GinkgoHelper()
	return l.serve(more...), l.start()
}

// fails waits for the end of a daemon that does not begin to serve.
func (d *daemonRun) fails(status int, says string) {
	GinkgoHelper()
	Eventually(d.ended).Should(BeClosed())
	Expect(d.ProcessState.ExitCode()).To(Equal(status))
	Expect(d.log).To(gbytes.Say(says))
}

// end sends a signal, waits for the end, and returns the exit status.
func (d *daemonRun) end(signal syscall.Signal) int {
	GinkgoHelper()
	_ = d.Process.Signal(signal)
	Eventually(d.ended).Should(BeClosed())
	return d.ProcessState.ExitCode()
}

// exec starts the plugin as a program.
func (l *lan) exec(c Call) *exec.Cmd {
	GinkgoHelper()
	cmd := exec.Command(nstest.Build("dhcp"))
	cmd.Env, cmd.Stdin = c.Vars(l.World), strings.NewReader(c.Stdin())
	background(l.Host, cmd)
	return cmd
}

// background starts a program, which is killed at the end of the spec.
func background(on *nstest.Host, cmd *exec.Cmd) {
	GinkgoHelper()
	on.Do(func() { Expect(cmd.Start()).To(Succeed()) })
	DeferCleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// records are the files of leases.
func (l *lan) records() []string {
	GinkgoHelper()
	var names []string
	l.Do(func() {
		names = nstest.Must(filepath.Glob("/run/hawser/dhcp/*/*.json"))
	})
	return names
}

// program starts a server that is a program.
func program(on *nstest.Host, name string, args ...string) (log *gbytes.Buffer) {
	GinkgoHelper()
	cmd := exec.Command(name, args...)
	log = gbytes.NewBuffer()
	cmd.Stdout = io.MultiWriter(log, GinkgoWriter)
	cmd.Stderr = cmd.Stdout
	background(on, cmd)
	return log
}

// server is a DHCP server that does as the spec says.
type server struct {
	conn  net.PacketConn
	mu    sync.Mutex
	seen  []seen
	given map[string]netip.Addr // by client ID
	// The rest is set by set.
	more   []dhcpv4.Modifier // of each answer
	first  netip.Addr        // that is lent
	script func(s *server, req, answer *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4
}

// seen is a message of a client.
type seen struct {
	*dhcpv4.DHCPv4
	src netip.Addr
}

func (l *lan) serve(more ...dhcpv4.Modifier) *server {
	GinkgoHelper()
	s := &server{given: map[string]netip.Addr{}, first: netip.MustParseAddr("10.9.0.50"),
		more: append([]dhcpv4.Modifier{dhcpv4.WithLeaseTime(3600)}, more...)}
	l.server.Do(func() { s.conn = nstest.Must(net.ListenPacket("udp4", "0.0.0.0:67")) })
	DeferCleanup(s.conn.Close)
	go s.run()
	return s
}

func (s *server) run() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		req, err := dhcpv4.FromBytes(buf[:n])
		if err != nil {
			continue
		}
		for _, answer := range s.answers(req, from.(*net.UDPAddr).AddrPort().Addr().Unmap()) {
			_, _ = s.conn.WriteTo(answer.ToBytes(), &net.UDPAddr{IP: net.IPv4(10, 9, 0, 255), Port: 68})
		}
	}
}

func (s *server) answers(req *dhcpv4.DHCPv4, src netip.Addr) []*dhcpv4.DHCPv4 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, seen{req, src})
	kind := map[dhcpv4.MessageType]dhcpv4.MessageType{dhcpv4.MessageTypeDiscover: dhcpv4.MessageTypeOffer,
		dhcpv4.MessageTypeRequest: dhcpv4.MessageTypeAck}[req.MessageType()]
	if kind == 0 {
		return nil
	}
	id := string(req.Options[61])
	if _, ok := s.given[id]; !ok {
		s.given[id] = s.first
		s.first = s.first.Next()
	}
	answer, err := dhcpv4.NewReplyFromRequest(req, append([]dhcpv4.Modifier{dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(s.given[id].AsSlice()), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
		dhcpv4.WithRouter(net.IPv4(10, 9, 0, 1)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 9, 0, 1)))}, s.more...)...)
	if err != nil {
		return nil
	}
	if s.script != nil {
		return s.script(s, req, answer)
	}
	return []*dhcpv4.DHCPv4{answer}
}

// set changes what the server does.
func (s *server) set(change func(*server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// messages are those of one kind. What is sent again, since no answer came in time, is one.
func (s *server) messages(kind dhcpv4.MessageType) (list []seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[dhcpv4.TransactionID]bool{}
	for _, m := range s.seen {
		if m.MessageType() == kind && (kind == release || !known[m.TransactionID]) {
			known[m.TransactionID] = true
			list = append(list, m)
		}
	}
	return list
}

// shortLease are options that make a client renew after a second, and ask all servers long
// after that: what a late answer is for must not have ended.
func shortLease(lease uint32) []dhcpv4.Modifier {
	return []dhcpv4.Modifier{dhcpv4.WithLeaseTime(lease),
		dhcpv4.WithOption(dhcpv4.OptRenewTimeValue(time.Second)),
		dhcpv4.WithOption(dhcpv4.OptRebindingTimeValue(time.Duration(min(lease, 30)) * time.Second))}
}

// configure gives the container what ADD returns, as a main plugin does.
func (l *lan) configure(c *nstest.Host) Result {
	GinkgoHelper()
	r := l.Add(l.call("ADD", c))
	c.Cmd("ip", "link", "set", "eth0", "up")
	c.Cmd("ip", "addr", "add", r.IPs[0].Address, "dev", "eth0")
	for _, route := range r.Routes {
		c.Cmd("ip", "route", "add", route["dst"].(string), "via", route["gw"].(string), "dev", "eth0")
	}
	return r
}

// plugged lists the server's links, with a port for each container that is there.
func (l *lan) plugged() string {
	GinkgoHelper()
	return l.server.Cmd("ip", "-o", "link")
}
