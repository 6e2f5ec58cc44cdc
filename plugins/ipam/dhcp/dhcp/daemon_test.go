package dhcp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
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

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestDHCP(t *testing.T) { nstest.RunSpecs(t, "plugins/ipam/dhcp/dhcp") }

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

// lan is a host with a network for its containers, on which there is a DHCP server.
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
	l := &lan{World: NewWorld(Plugin()), server: nstest.NewHost()}
	l.socket = filepath.Join(GinkgoT().TempDir(), "dhcp.sock")
	l.server.IP("link add br0 type bridge", "addr add 10.9.0.1/24 dev br0", "link set br0 up")
	return l
}

// newClient returns a network with a container on it.
func newClient() (*lan, *nstest.Host) {
	GinkgoHelper()
	l := newLAN()
	return l, l.container()
}

// container returns a new container with eth0 on the network.
func (l *lan) container() *nstest.Host {
	GinkgoHelper()
	c := nstest.NewNetns()
	l.plug(c, "eth0")
	return c
}

// plug adds an interface, which is down, to a container.
func (l *lan) plug(c *nstest.Host, name string) {
	GinkgoHelper()
	l.ports++
	l.server.IP(fmt.Sprintf("link add port%d type veth peer name %s netns %s", l.ports, name, c.Name),
		fmt.Sprintf("link set port%d up master br0", l.ports))
}

// up brings the only container's eth0 up, and waits until the network carries packets.
func (l *lan) up(c *nstest.Host) {
	GinkgoHelper()
	c.Cmd("ip", "link", "set", "eth0", "up")
	isUp(c, "eth0")
	isUp(l.server, "port1", "br0")
}

// isUp waits until links are up. The kernel reports their carrier asynchronously.
func isUp(h *nstest.Host, names ...string) {
	GinkgoHelper()
	for _, name := range names {
		Eventually(func() string { return Show(h, name).Operstate }).Should(Equal("UP"))
	}
}

// call returns a call for a container's eth0.
func (l *lan) call(command string, c *nstest.Host) Call {
	keys := l.keys
	if keys != "" {
		keys = ", " + keys
	}
	return Call{Command: command, Netns: c.Path, ID: c.Name, Conf: fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net",
		"type": "bridge", "ipam": {"type": "dhcp", "daemonSocketPath": %q%s}}`, l.socket, keys)}
}

// withPath returns a call with another path of the container's namespace.
func (l *lan) withPath(netns, command string, c *nstest.Host) Call {
	call := l.call(command, c)
	call.Netns = netns
	return call
}

// withKey returns a call with one more key in the network configuration.
func (l *lan) withKey(command string, c *nstest.Host, key, value string) Call {
	call := l.call(command, c)
	call.Conf = fmt.Sprintf("%s, %q: %s}", strings.TrimSuffix(call.Conf.(string), "}"), key, value)
	return call
}

// withPrevResult returns a call with a result as prevResult.
func (l *lan) withPrevResult(command string, c *nstest.Host, r Result) Call {
	return l.withKey(command, c, "prevResult", r.Text)
}

// gc returns a GC with a list of valid attachments in JSON.
func (l *lan) gc(valid string) Call {
	return l.withKey("GC", l.Host, "cni.dev/valid-attachments", valid)
}

// daemonRun is a running "dhcp daemon".
type daemonRun struct {
	*exec.Cmd
	log   *gbytes.Buffer
	ended chan struct{}
}

// launch starts the daemon from bash, after the shell commands in before.
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

// start starts the daemon on the network's socket and waits until it serves.
func (l *lan) start(args ...string) *daemonRun {
	GinkgoHelper()
	d := l.launch("", append([]string{"-socketpath", l.socket}, args...)...)
	Eventually(d.log).Should(gbytes.Say("serving"))
	return d
}

// begin starts a DHCP server and the daemon.
func (l *lan) begin(more ...dhcpv4.Modifier) (*server, *daemonRun) {
	GinkgoHelper()
	return l.serve(more...), l.start()
}

// failsToStart waits until a daemon ends that cannot serve.
func (d *daemonRun) failsToStart(status int, says string) {
	GinkgoHelper()
	Eventually(d.ended).Should(BeClosed())
	Expect(d.ProcessState.ExitCode()).To(Equal(status))
	Expect(d.log).To(gbytes.Say(says))
}

// end sends a signal, waits until the daemon ends, and returns the exit status.
func (d *daemonRun) end(signal syscall.Signal) int {
	GinkgoHelper()
	_ = d.Process.Signal(signal)
	Eventually(d.ended).Should(BeClosed())
	return d.ProcessState.ExitCode()
}

// exec runs the plugin as a process.
func (l *lan) exec(c Call) *exec.Cmd {
	GinkgoHelper()
	cmd := exec.Command(nstest.Build("dhcp"))
	cmd.Env, cmd.Stdin = c.Vars(l.World), strings.NewReader(c.Stdin())
	background(l.Host, cmd)
	return cmd
}

// background starts a process that is killed at the end of the spec.
func background(on *nstest.Host, cmd *exec.Cmd) {
	GinkgoHelper()
	on.Do(func() { Expect(cmd.Start()).To(Succeed()) })
	DeferCleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// records returns the record files.
func (l *lan) records() []string {
	GinkgoHelper()
	var names []string
	l.Do(func() {
		names = nstest.Must(filepath.Glob("/run/hawser/dhcp*/*/*.json"))
	})
	return names
}

// program starts a server program.
func program(on *nstest.Host, name string, args ...string) (log *gbytes.Buffer) {
	GinkgoHelper()
	cmd := exec.Command(name, args...)
	log = gbytes.NewBuffer()
	cmd.Stdout = io.MultiWriter(log, GinkgoWriter)
	cmd.Stderr = cmd.Stdout
	background(on, cmd)
	return log
}

// server is a DHCP server whose behavior the spec sets.
type server struct {
	conn  net.PacketConn
	mu    sync.Mutex
	seen  []clientMessage
	given map[string]netip.Addr // by client ID
	// The fields below are changed with set.
	more   []dhcpv4.Modifier // of each answer
	first  netip.Addr        // the next address to lease
	script func(s *server, req, answer *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4
	// unicastOnly makes the server answer a renewal only to the client's address, as most servers do.
	unicastOnly bool
}

// clientMessage is a message from a client.
type clientMessage struct {
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
		answers := s.answers(req, from.(*net.UDPAddr).AddrPort().Addr().Unmap())
		to := net.IPv4(10, 9, 0, 255)
		s.set(func(s *server) {
			if s.unicastOnly && !req.ClientIPAddr.IsUnspecified() {
				to = req.ClientIPAddr
			}
		})
		for _, answer := range answers {
			_, _ = s.conn.WriteTo(answer.ToBytes(), &net.UDPAddr{IP: to, Port: 68})
		}
	}
}

func (s *server) answers(req *dhcpv4.DHCPv4, src netip.Addr) []*dhcpv4.DHCPv4 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, clientMessage{req, src})
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

// set changes the server's behavior.
func (s *server) set(change func(*server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// messages returns the messages of one type. A message and its repetitions count once.
func (s *server) messages(kind dhcpv4.MessageType) (list []clientMessage) {
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

// shortLease returns options that make a client renew after a second and rebind much later, so that a late answer
// still belongs to a live lease.
func shortLease(lease uint32) []dhcpv4.Modifier {
	return []dhcpv4.Modifier{dhcpv4.WithLeaseTime(lease),
		dhcpv4.WithOption(dhcpv4.OptRenewTimeValue(time.Second)),
		dhcpv4.WithOption(dhcpv4.OptRebindingTimeValue(time.Duration(min(lease, 30)) * time.Second))}
}

// configure configures the container with a result, as a main plugin does.
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

// serverPorts lists the server's links, which include a port for each existing container.
func (l *lan) serverPorts() string {
	GinkgoHelper()
	return l.server.Cmd("ip", "-o", "link")
}

// waits returns a function that reports whether a call writes a record or waits for the lock.
func waits(d *daemon) func() bool {
	return func() bool {
		isFree := d.recordMu.TryLock()
		if isFree {
			d.recordMu.Unlock()
		}
		return !isFree
	}
}

// waitingDaemon is a daemon that waits for the lock of its records, which the spec holds.
func waitingDaemon(ctx context.Context) (*daemon, *statefile.Store[record]) {
	GinkgoHelper()
	d := newDaemon(ctx, flags{hostPrefix: GinkgoT().TempDir()}, slog.New(slog.DiscardHandler))
	d.records4.Wait = time.Hour
	other := nstest.Must(d.records4.Open(ctx))
	DeferCleanup(other.Close)
	return d, other
}

var _ = Describe("the daemon", func() {
	var l *lan
	var c *nstest.Host
	BeforeEach(func() { l, c = newClient() })

	DescribeTable("leaves the leases to the next one, which renews and releases them", Label("daemon-upgrade"), func(
		signal syscall.Signal,
	) {
		s, d := l.begin(shortLease(600)...)
		r := l.configure(c)
		d.end(signal)
		before := count(s, request)()
		l.start()
		l.Succeeds(l.withPrevResult("CHECK", c, r))
		Eventually(count(s, request)).Should(BeNumerically(">", before))
		Expect(addrs(c)()).To(Equal([]string{"10.9.0.50/24"}))
		l.Succeeds(l.withPrevResult("DEL", c, r))
		Eventually(count(s, release)).Should(Equal(1))
		Expect(count(s, discover)()).To(Equal(1))
	},
		Entry("at SIGTERM", syscall.SIGTERM),
		Entry("at SIGKILL, with its socket", syscall.SIGKILL),
	)

	It("starts with unreadable records, names them, and continues the other leases", Label("lease-record"), func() {
		_, d := l.begin()
		l.Add(l.call("ADD", c))
		r := l.records()
		other := l.container()
		added := l.Add(l.call("ADD", other))
		d.end(syscall.SIGTERM)
		broken := filepath.Join(filepath.Dir(r[0]), strings.Repeat("0", 64)+".json")
		l.Cmd("sh", "-c", "echo broken >"+broken)
		l.Cmd("mount", "--bind", "/sys/class/net/lo/speed", r[0]) // whose content cannot be read
		d = l.start()
		log := string(d.log.Contents())
		Expect(log).To(And(ContainSubstring("invalid argument"), ContainSubstring("file="+r[0]),
			ContainSubstring("file="+broken)))
		l.Succeeds(l.withPrevResult("CHECK", other, added))
		Expect(l.records()).To(ContainElements(r[0], broken))
	})

	It("drops, after a restart, the leases of containers that no longer exist", func() {
		_, d := l.begin()
		l.Add(l.call("ADD", c))
		d.end(syscall.SIGKILL)
		c.Unpin()
		l.start()
		Eventually(l.records).Should(BeEmpty())
	})

	It("is the only one on its socket, which only root can use", func() {
		l.start("-pidfile", filepath.Join(filepath.Dir(l.socket), "pid"))
		Expect(nstest.Must(os.Stat(l.socket)).Mode()).To(Equal(os.ModeSocket | 0o600))
		l.launch("", "-socketpath", l.socket).failsToStart(1, "another daemon serves "+l.socket)
		l.Succeeds(l.call("STATUS", c))
	})

	DescribeTable("does not replace files that are not sockets", func(put func(path string) error) {
		Expect(put(l.socket)).To(Succeed())
		before := nstest.Must(os.Lstat(l.socket))
		l.launch("", "-socketpath", l.socket).failsToStart(1, "address already in use")
		Expect(os.SameFile(nstest.Must(os.Lstat(l.socket)), before)).To(BeTrue())
	},
		Entry("a file", func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) }),
		Entry("a directory", func(path string) error { return os.Mkdir(path, 0o700) }),
		Entry("a symbolic link", func(path string) error { return os.Symlink("/proc/version", path) }),
	)

	It("continues when it has more connections than descriptors", func() {
		d := l.launch("ulimit -n 20;", "-socketpath", l.socket)
		Eventually(d.log).Should(gbytes.Say("serving"))
		var all []net.Conn
		for range 40 {
			all = append(all, nstest.Must(net.Dial("unix", l.socket)))
		}
		Eventually(d.log).Should(gbytes.Say("too many open files"))
		for _, conn := range all {
			Expect(conn.Close()).To(Succeed())
		}
		Eventually(func() int { return l.Call(l.call("STATUS", c)).Code }).Should(BeZero())
	})

	It("does not wait at its end for a caller that sends nothing", func() {
		Eventually(func() time.Duration { // a busy machine may take callTime, but not each time
			d, since := l.start(), sysctl.Uptime()
			conn := nstest.Must(net.Dial("unix", l.socket))
			defer conn.Close()
			l.Succeeds(l.call("STATUS", c)) // the daemon accepts it after the other connection
			Expect(d.end(syscall.SIGTERM)).To(BeZero())
			return sysctl.Uptime() - since
		}).Should(BeNumerically("<", callTime))
	})

	It("refuses users other than root, whatever the socket's mode is", func() {
		nstest.Need("realroot")
		d := l.start()
		Expect(os.Chmod(l.socket, 0o666)).To(Succeed())
		for dir := filepath.Dir(l.socket); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
			Expect(os.Chmod(dir, 0o755)).To(Succeed())
		}
		client := exec.Command("socat", "-", "UNIX-CONNECT:"+l.socket)
		client.Stdin = strings.NewReader(connectRequest)
		client.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := client.CombinedOutput()
		Expect(string(out)).NotTo(ContainSubstring(connectResponse))
		Eventually(d.log).Should(gbytes.Say("user 65534; only root may call the daemon"))
	})

	It("puts the prefix of the host before its paths", func() {
		s, prefix := l.serve(), GinkgoT().TempDir()
		d := l.launch("", "-hostprefix", prefix, "-socketpath", "/run/d.sock", "-pidfile", prefix+"/pid")
		Eventually(d.log).Should(gbytes.Say("serving"))
		Expect(os.ReadFile(prefix + "/pid")).To(BeEquivalentTo(fmt.Sprint(d.Process.Pid)))
		path := filepath.Join(prefix, "ns")
		Expect(os.Symlink(c.Path, path)).To(Succeed())
		l.socket = prefix + "/run/d.sock"
		l.Add(l.withPath("/ns", "ADD", c))
		Expect(filepath.Glob(prefix + "/run/hawser/dhcp/*/*.json")).To(HaveLen(1))
		Expect(count(s, request)()).To(Equal(1))
		d.end(syscall.SIGTERM)
		Expect(prefix + "/pid").NotTo(BeAnExistingFile())
	})

	DescribeTable("fails with advice for pods if it sees", Label("daemon-in-pod"), func(
		before, want string,
	) {
		d := l.launch(`exec unshare --mount --propagation private bash -c '`+before+`exec "$0" "$@"' "$0" "$@";`,
			"-socketpath", l.socket)
		Eventually(d.log).Should(gbytes.Say("serving"))
		Expect(l.Fails(l.call("ADD", l.container()), cni.CodeTryAgain)).To(And(ContainSubstring(want), ContainSubstring(
			"in a pod, mount /run/netns with HostToContainer propagation, or start the daemon with -hostprefix")))
		Eventually(d.log).Should(gbytes.Say("dropped.*HostToContainer"))
	},
		Entry("the directory without the mount", "", "not a network namespace"),
		Entry("another directory", "mount -t tmpfs none /run/netns; ", "no such network namespace"),
	)

	DescribeTable("refuses", func(status int, says string, args ...string) {
		l.launch("", append([]string{"-socketpath", l.socket}, args...)...).failsToStart(status, says)
	},
		Entry("an unknown flag", 2, "flag provided but not defined: -nope", "-nope"),
		Entry("a relative path of the process ID", 1, `pidfile .*rel.pid.*: path not absolute`, "-pidfile", "rel.pid"),
	)

	DescribeTable("is started by systemd", func(sockets int, want string) {
		listener := nstest.Must(net.ListenUnix("unix", &net.UnixAddr{Name: l.socket, Net: "unix"}))
		file := nstest.Must(listener.File())
		l.passed = []*os.File{file, file}[:sockets]
		d := l.launch("LISTEN_PID=$$ LISTEN_FDS="+fmt.Sprint(sockets), "-socketpath", "/unused")
		Eventually(d.log).Should(gbytes.Say(want))
		if sockets == 1 {
			l.Succeeds(l.call("STATUS", c))
			d.end(syscall.SIGTERM)
			Expect(l.socket).To(BeAnExistingFile(), "it belongs to systemd")
		}
	},
		Entry("with its socket", 1, "serving"),
		Entry("with too many", 2, `too many \(2\) FDs passed through socket activation`),
	)

	It("reaches interfaces while another process has the lock of the records", func(ctx SpecContext) {
		d, other := waitingDaemon(ctx)
		dropped := make(chan error, 1+maxThreads)
		for i := range 1 + maxThreads {
			a := cni.Attachment{Network: "net", ContainerID: fmt.Sprint(i), IfName: "lo"}
			Expect(other.Put(ctx, record{Attachment: a})).To(Succeed())
			go func() { dropped <- d.dropRecord(a, false) }()
		}
		Eventually(waits(d)).Should(BeTrue())
		opened := make(chan error, 1)
		go func() {
			d.hostPrefix = ""
			l, err := d.newClient(record{Attachment: cni.Attachment{IfName: "lo"}, NetnsPath: c.Path}).openLink(true)
			if err == nil {
				l.close()
			}
			opened <- err
		}()
		Eventually(opened).Should(Receive(BeNil()))
		Expect(other.Close()).To(Succeed())
		for range 1 + maxThreads {
			Eventually(dropped).Should(Receive(BeNil()))
		}
	})

	It("answers calls about other leases while one waits for the lock of the records", func(ctx SpecContext) {
		d, other := waitingDaemon(ctx)
		a := cni.Attachment{Network: "net", ContainerID: "one", IfName: "eth0"}
		Expect(other.Put(ctx, record{Attachment: a})).To(Succeed())
		c := d.newClient(record{Attachment: a, NetnsPath: "/absent"}) // which ends immediately
		d.mu.Lock()
		c.start()
		d.mu.Unlock()
		Eventually(waits(d)).Should(BeTrue())
		found := make(chan *client)
		go func() { found <- d.client(cni.Attachment{Network: "net", ContainerID: "two", IfName: "eth0"}, false) }()
		Eventually(found).Should(Receive(BeNil()))
		Expect(other.Close()).To(Succeed())
		Eventually(c.done).Should(BeClosed())
	})

	It("holds a hundred leases with a descriptor for each, and no thread for each", Label("namespace-let-go"), func() {
		l.serve()
		// The Go runtime has a thread for each processor, and one more for each thread that waits in the kernel.
		d := l.launch("GOMAXPROCS=2", "-socketpath", l.socket)
		Eventually(d.log).Should(gbytes.Say("serving"))
		var commands []string
		for i := range 100 {
			add := fmt.Sprintf("link add many%d type veth peer name eth%d netns %s", i, i+1, c.Name)
			commands = append(commands, add, fmt.Sprintf("link set many%d up master br0", i))
		}
		l.server.IP(commands...)
		conf := []byte(l.call("ADD", c).Conf.(string))
		// Ten at a time, because on a busy machine each concurrent call can get a thread, which stays.
		for tens := 0; tens < 100; tens += 10 {
			nstest.AtOnce(10, func(i int) {
				// As a runtime does if a call takes too long on a busy machine.
				Eventually(func() error {
					_, err := callDaemon(GinkgoT().Context(), l.socket, methodAllocate, rpcCall{ContainerID: "one",
						Netns: c.Path, IfName: fmt.Sprintf("eth%d", tens+i+1), StdinData: conf})
					return err
				}).WithTimeout(nstest.Patience(5 * time.Minute)).Should(Succeed())
			})
		}
		Expect(l.records()).To(HaveLen(100))
		Eventually(func() int { return OpenFiles(d.Process.Pid, "socket:") }).Should(Equal(1))
		Eventually(func() int { return OpenFiles(d.Process.Pid, "") }).Should(BeNumerically("<", 100+14))
		Eventually(func() int { return OpenFiles(d.Process.Pid, c.Path) }).Should(Equal(100))
		tasks := fmt.Sprintf("/proc/%d/task/", d.Process.Pid)
		threads := nstest.Must(os.ReadDir(tasks))
		GinkgoWriter.Println(len(threads), "threads")
		Expect(len(threads)).To(BeNumerically("<", 50))
		home := nstest.Must(os.Readlink(fmt.Sprintf("/proc/%d/ns/net", d.Process.Pid)))
		Eventually(func() (away []string) { // a thread that was in a container's namespace is ending
			for _, t := range threads {
				netns, err := os.Readlink(tasks + t.Name() + "/ns/net")
				if err == nil && netns != home {
					away = append(away, t.Name())
				}
			}
			return away
		}).Should(BeEmpty())
	})
})

var _ = Describe("together with the reference", func() {
	var l *lan
	var c *nstest.Host
	BeforeEach(func() { l, c = newClient() })

	It("its plugin is served", Label("dhcp-reference"), func() {
		s, _ := l.begin()
		old := func(call Call) Answer { return l.Reference(nstest.Newest(), call) }
		conf := func(call Call) Call {
			call.Conf = strings.ReplaceAll(call.Conf.(string), "1.1.0", "1.0.0")
			return call
		}
		r := old(conf(l.call("ADD", c))).Added()
		Expect(r.Text).To(MatchJSON(`{"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.50/24",
			"gateway": "10.9.0.1"}], "routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.1"}]}`))
		Expect(old(conf(l.withPrevResult("CHECK", c, r))).Code).To(BeZero())
		Expect(count(s, discover)()).To(Equal(1))
		Expect(old(conf(l.withPrevResult("DEL", c, r))).Code).To(BeZero())
		Eventually(count(s, release)).Should(Equal(1))
	})

	It("its daemon serves ADD and DEL; CHECK and GC warn that it cannot do them", Label("dhcp-reference"), func() {
		l.serve()
		l.Do(func() { Expect(os.MkdirAll("/run/cni", 0o700)).To(Succeed()) })
		log := program(l.Host, nstest.Newest().Program("dhcp"), "daemon", "-socketpath", l.socket,
			"-timeout", "1s")
		Eventually(func() int { return l.Call(l.call("STATUS", c)).Code }).Should(BeZero())
		l.up(c) // otherwise, its first DISCOVER is lost
		r := l.Add(l.call("ADD", c))
		Expect(r.IPs[0].Address).To(Equal("10.9.0.50/24"))
		Expect(r.IPs[0].Gateway).To(Equal("10.9.0.1"))
		a := l.Call(l.withPrevResult("CHECK", c, r))
		Expect(a.Code).To(BeZero())
		Expect(a.Stderr).To(ContainSubstring("nothing is checked"))
		a = l.Call(l.gc("[]"))
		Expect(a.Code).To(BeZero())
		Expect(a.Stderr).To(ContainSubstring("no lease is collected"))
		l.Succeeds(l.withPrevResult("DEL", c, r))
		Eventually(log).Should(gbytes.Say("releasing lease")) // from 0.0.0.0, which no server answers
	})
})

var _ = DescribeTable("a lease is acquired immediately, and released while the interface still exists",
	Label("lease-released"), func(plugin, keys string, setup ...string) {
		l := newLAN()
		s, c := l.serve(), nstest.NewNetns()
		l.IP("link add uplink type veth peer name port0 netns " + l.server.Name)
		l.IP(setup...)
		l.server.IP("link set port0 up master br0")
		l.start()
		program := nstest.Build(plugin)
		run := func(call Call) Answer {
			call.Path = filepath.Dir(program)
			own := fmt.Sprintf(`"type": %q%s`, plugin, keys)
			call.Conf = strings.Replace(call.Conf.(string), `"type": "bridge"`, own, 1)
			return Ran(l.Run(call.Program(l.World, program)))
		}
		began := sysctl.Uptime()
		r := run(l.call("ADD", c)).Added()
		GinkgoWriter.Println("ADD took", sysctl.Uptime()-began, "and", count(s, discover)(), "DISCOVER")
		Expect(addrs(c)()).To(Equal([]string{"10.9.0.50/24"}))
		Expect(run(l.withPrevResult("CHECK", c, r)).Code).To(BeZero())
		isReleased := func(ended Answer) {
			GinkgoHelper()
			Expect(ended.Code).To(BeZero())
			Eventually(count(s, release)).Should(Equal(1))
			Expect(s.messages(release)[0].src.String()).To(Equal("10.9.0.50"))
			s.set(func(s *server) { s.seen = nil })
			Expect(Names(c, "")).To(BeEmpty())
			Expect(l.records()).To(BeEmpty())
		}
		isReleased(run(l.withPrevResult("DEL", c, r)))
		Expect(run(l.withPrevResult("DEL", c, r)).Code).To(BeZero())
		By("GC")
		run(l.call("ADD", c)).Added()
		isReleased(run(l.gc("[]")))
		By("DEL without CNI_NETNS")
		run(l.call("ADD", c)).Added()
		isReleased(run(l.withPath("", "DEL", c)))
	},
	Entry("under bridge", "bridge", "", "link add cni0 type bridge", "link set uplink up master cni0"),
	Entry("under macvlan", "macvlan", `, "master": "uplink"`, "link set uplink up"),
	Entry("under host-device", "host-device", `, "device": "uplink"`, "link set uplink up"),
)

var _ = Describe("with real servers", func() {
	life := func(l *lan, renewals int) {
		GinkgoHelper()
		c := l.container()
		d := l.start()
		r := l.configure(c)
		Expect(r.IPs[0].Address).To(MatchRegexp(`^10\.9\.0\.(5\d|60)/24$`))
		for range 1 + renewals {
			Eventually(d.log).Should(gbytes.Say("msg=leased"))
		}
		l.Succeeds(l.withPrevResult("CHECK", c, r))
		l.Succeeds(l.withPrevResult("DEL", c, r))
	}

	It("dnsmasq grants a lease and receives its release", func() {
		nstest.NeedProgram("dnsmasq")
		l := newLAN()
		dir := GinkgoT().TempDir()
		log := program(l.server, "dnsmasq", "--no-daemon", "--conf-file=/dev/null",
			"--port=0", "--interface=br0", "--bind-interfaces", "--user=root", "--group=root", "--pid-file=",
			"--log-dhcp", "--no-ping", "--dhcp-leasefile="+dir+"/leases",
			"--dhcp-range=10.9.0.50,10.9.0.60,2m", "--dhcp-authoritative")
		life(l, 0)
		Eventually(log).Should(gbytes.Say(`DHCPRELEASE.* 10\.9\.0\.(5\d|60) `))
	})

	It("udhcpd grants a lease of twelve seconds, renews it and receives its release", Label("lease-renewed"), func() {
		nstest.NeedProgram("busybox")
		l := newLAN()
		conf := filepath.Join(GinkgoT().TempDir(), "conf")
		Expect(os.WriteFile(conf, []byte("start 10.9.0.50\nend 10.9.0.60\ninterface br0\n"+
			"lease_file "+conf+".leases\npidfile "+conf+".pid\n"+
			"opt subnet 255.255.255.0\nopt router 10.9.0.1\nopt lease 12\nopt 0x3a 00000002\n"), 0o600)).To(Succeed())
		program(l.server, "busybox", "udhcpd", "-f", conf)
		life(l, 2)
	})
})
