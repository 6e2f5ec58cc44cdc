package nstest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// Host is a network namespace in which a spec works. If [NewHost] created it, it is also a mount namespace. It exists
// until the end of the spec.
type Host struct {
	// Name is the namespace's name for ip-netns(8).
	Name string
	// Path is the file on which the network namespace is pinned, for CNI_NETNS.
	Path string

	mounts *os.File // nil: the test process's own mount namespace
	root   *os.File // the test process's root directory in mounts
}

// NewHost creates a machine: a network namespace with lo up, and a mount namespace with empty /run and /var/lib and the
// /sys of that network namespace. It skips the spec if namespaces cannot be created.
func NewHost() *Host {
	ginkgo.GinkgoHelper()
	return create(true)
}

// NewNetns creates a network namespace as a runtime passes it to a plugin: unchanged, with lo down. Programs in it see
// the mounts of the test process.
func NewNetns() *Host {
	ginkgo.GinkgoHelper()
	return create(false)
}

// count keeps names unique within the run.
var count atomic.Int64

func create(machine bool) *Host {
	ginkgo.GinkgoHelper()
	if run.unavailable != "" {
		skip("namespaces", run.unavailable)
	}
	name := fmt.Sprintf("ns%d", count.Add(1))
	h := &Host{Name: name, Path: filepath.Join(netnsDir, name)}
	err := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and so does its membership of the namespaces.
		runtime.LockOSThread()
		err <- h.unshare(machine)
	}()
	if err := <-err; err != nil {
		ginkgo.Fail("create " + name + ": " + err.Error())
	}
	ginkgo.DeferCleanup(h.unpin)
	return h
}

// unshare moves the calling thread into the new namespaces and pins them.
func (h *Host) unshare(machine bool) error {
	flags := unix.CLONE_NEWNET
	if machine {
		flags |= unix.CLONE_FS | unix.CLONE_NEWNS
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_ = f.Close()
	if err := mount("/proc/thread-self/ns/net", h.Path, "", unix.MS_BIND); err != nil {
		return err
	}
	if err := disinherit(); err != nil {
		return err
	}
	if !machine {
		return nil
	}
	if err := errors.Join(machineMounts(), loopbackUp()); err != nil {
		return err
	}
	if h.root, err = os.Open("/"); err != nil {
		return err
	}
	h.mounts, err = os.Open("/proc/thread-self/ns/mnt")
	return err
}

// loopbackUp sets lo up, as "ip link set lo up" does, without a process.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("lo up: %w", err)
	}
	return nil
}

// machineMounts mounts the directories in which plugins and their helpers keep state, in the mount namespace of the
// calling thread.
func machineMounts() error {
	pins, err := unix.Open(netnsDir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pins) }()
	for _, dir := range []string{"/run", "/var/lib"} {
		if err := mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o755); err != nil { // all users may write to a new tmpfs
			return err
		}
	}
	for _, dir := range []string{netnsDir, "/run/lock", "/var/lib/cni"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount(fmt.Sprintf("/proc/thread-self/fd/%d", pins), netnsDir, "", unix.MS_BIND|unix.MS_REC); err != nil {
		return err
	}
	// If a container engine masks parts of /sys, the kernel refuses a new one. Programs then see the machine's /sys,
	// read-only.
	_ = mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
	return nil
}

// Do runs fn on a thread inside the namespaces and returns when it has ended. A failed assertion in fn ends the
// spec as usual. Goroutines that fn starts are not inside.
func (h *Host) Do(fn func()) {
	ginkgo.GinkgoHelper()
	done, panicked := make(chan struct{}), any(nil)
	var enterErr error
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if enterErr = h.enter(); enterErr != nil {
			return
		}
		defer func() { panicked = recover() }()
		fn()
	}()
	<-done
	if enterErr != nil {
		ginkgo.Fail(fmt.Sprintf("enter %s: %v", h.Name, enterErr))
	}
	if panicked != nil {
		panic(panicked)
	}
}

// enter moves the calling thread into the namespaces for good.
func (h *Host) enter() error {
	f, err := os.Open(h.Path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if h.mounts != nil {
		if err := h.enterMounts(); err != nil {
			return err
		}
	}
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	return nil
}

func (h *Host) enterMounts() error {
	// setns moves the working directory to the namespace's root, which is outside a chroot.
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(int(h.mounts.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	return errors.Join(h.root.Chdir(), unix.Chroot("."), unix.Chdir(wd))
}

// Unpin removes Path, as a runtime does at the end of a container, and releases a machine's mounts. The kernel removes
// the namespaces when nothing uses them. A second Unpin has no effect.
func (h *Host) Unpin() {
	ginkgo.GinkgoHelper()
	gomega.Expect(h.unpin()).To(gomega.Succeed())
}

func (h *Host) unpin() error {
	if h.mounts != nil {
		_ = h.mounts.Close()
		_ = h.root.Close()
	}
	// Not Path, which a spec may have changed to a file that must stay.
	pin := filepath.Join(netnsDir, h.Name)
	// EINVAL means that the spec has already unmounted it.
	err := unix.Unmount(pin, unix.MNT_DETACH)
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unpin %s: %w", pin, err)
	}
	if err := os.Remove(pin); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// AtOnce calls do with 0 to n-1, each in its own goroutine, and waits for all.
func AtOnce(n int, do func(i int)) {
	ginkgo.GinkgoHelper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			defer ginkgo.GinkgoRecover()
			do(i)
		})
	}
	all.Wait()
}

// deadline is a context that ends with context.DeadlineExceeded.
type deadline struct {
	context.Context
	over chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.over }

func (d deadline) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// DeadlineWhen returns a context whose deadline expires when done returns true, independent of the machine's speed, and
// at the latest after [Hang].
func DeadlineWhen(done func() bool) context.Context {
	ginkgo.GinkgoHelper()
	d := deadline{context.Background(), make(chan struct{})}
	stop := make(chan struct{})
	ginkgo.DeferCleanup(func() {
		close(stop)
		<-d.over // done may use files that are removed next
	})
	go func() {
		defer close(d.over)
		defer ginkgo.GinkgoRecover()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(Patience(Hang)); !done() && time.Now().Before(end); {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	return d
}

// End is one end of a cable: an interface of a Host and its addresses with prefix lengths.
type End struct {
	Host  *Host
	Name  string
	Addrs []string
}

// Wire connects two Hosts by a veth pair, with both ends up and their addresses immediately usable.
func Wire(a, b End) {
	ginkgo.GinkgoHelper()
	// In two new namespaces both ends of a veth would get the same index. The kernel mistakes such a veth for a link
	// without a peer, and reports its carrier up to a second later.
	index := fmt.Sprint(1000 + count.Add(1))
	a.Host.Cmd("ip", "link", "add", a.Name, "index", index, "type", "veth",
		"peer", "name", b.Name, "netns", b.Host.Name)
	for _, e := range []End{a, b} {
		// Duplicate address detection would end in the middle of a spec.
		e.Host.SetSysctl("net/ipv6/conf/"+e.Name+"/accept_dad", "0")
		var lines []string
		for _, addr := range e.Addrs {
			line := "addr add " + addr + " dev " + e.Name
			if strings.Contains(addr, ":") { // otherwise it is still tentative for a moment
				line += " nodad"
				if !HasIPv6() {
					continue
				}
			}
			lines = append(lines, line)
		}
		e.Host.IP(append(lines, "link set "+e.Name+" up")...)
	}
	for _, e := range []End{a, b} {
		if HasIPv6() {
			e.settle()
		}
	}
}

// HasIPv6 reports whether the kernel supports IPv6. It does not if it was started with ipv6.disable=1.
func HasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// settle waits until the link has its carrier, and the address and routes that the kernel then adds, shortly after the
// other end is up.
func (e End) settle() {
	ginkgo.GinkgoHelper()
	// The address's own route has RTF_LOCAL, the highest bit of the flags.
	local := regexp.MustCompile(`(?m)^fe80[0-9a-f]{28} 80 .* 8[0-9a-f]{7} +` + regexp.QuoteMeta(e.Name) + `$`)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(Patience(Hang)); ; <-tick.C {
		var routes []byte
		e.Host.Do(func() { routes = Must(os.ReadFile("/proc/thread-self/net/ipv6_route")) })
		if local.Match(routes) {
			return
		}
		if time.Now().After(end) {
			ginkgo.Fail(fmt.Sprintf("%s: no link-local address on %s:\n%s", e.Host.Name, e.Name, routes))
		}
	}
}

// NewOutside creates a machine one hop away from h: "ext" of h has 192.0.2.1/24 and 2001:db8::1/64, "eth0" of the
// machine 192.0.2.2 and 2001:db8::2. The machine has no route to networks behind h.
func NewOutside(h *Host) *Host {
	ginkgo.GinkgoHelper()
	out := NewHost()
	Wire(End{h, "ext", []string{"192.0.2.1/24", "2001:db8::1/64"}},
		End{out, "eth0", []string{"192.0.2.2/24", "2001:db8::2/64"}})
	return out
}

// Serve starts a server on a TCP or UDP address of the namespace until the end of the spec. The server answers with the
// client's address and port as it sees them. Serve returns the address; port 0 is replaced by the kernel's choice.
func (h *Host) Serve(network, address string) string {
	ginkgo.GinkgoHelper()
	if strings.HasPrefix(network, "udp") {
		return h.serveUDP(network, address)
	}
	var l net.Listener
	h.Do(func() { l = Must(net.Listen(network, address)) })
	ginkgo.DeferCleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, conn.RemoteAddr().String())
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

func (h *Host) serveUDP(network, address string) string {
	ginkgo.GinkgoHelper()
	var conn net.PacketConn
	h.Do(func() { conn = Must(net.ListenPacket(network, address)) })
	ginkgo.DeferCleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(from.String()), from)
		}
	}()
	return conn.LocalAddr().String()
}

// Ask connects to a server of [Host.Serve] and returns its answer: the client's address and port as the server sees
// them. It returns errors and does not fail the spec, because many specs expect them. Without an answer it tries again
// until [Hang].
func (h *Host) Ask(network, address string) (string, error) {
	ginkgo.GinkgoHelper()
	return h.AskWithin(Patience(Hang), network, address)
}

// AskWithin is like Ask with another limit, for specs that expect no answer.
func (h *Host) AskWithin(limit time.Duration, network, address string) (string, error) {
	ginkgo.GinkgoHelper()
	var answer []byte
	var err error
	h.Do(func() { answer, err = ask(network, address, time.Now().Add(limit)) })
	return string(answer), err
}

// attempt is the time limit of one connection attempt; the next one may take another path.
const attempt = 3 * time.Second

func ask(network, address string, end time.Time) (answer []byte, err error) {
	for {
		limit := time.Now().Add(attempt)
		if limit.After(end) {
			limit = end
		}
		answer, err = askOnce(network, address, limit)
		if timeout := (net.Error)(nil); !errors.As(err, &timeout) || !timeout.Timeout() || !time.Now().Before(end) {
			return answer, err
		}
	}
}

func askOnce(network, address string, end time.Time) ([]byte, error) {
	conn, err := (&net.Dialer{Deadline: end}).Dial(network, address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(end); err != nil {
		return nil, err
	}
	if _, ok := conn.(*net.UDPConn); !ok {
		return io.ReadAll(conn)
	}
	if _, err := conn.Write([]byte("?")); err != nil {
		return nil, err
	}
	buf := make([]byte, 128)
	n, err := conn.Read(buf)
	return buf[:n], err
}

// etherType is the type for experiments (IEEE 802).
const etherType = 0x88b5

// Broadcast is the address of all stations.
var Broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// Wiretap sends and receives frames on an interface. It receives only frames with the type for experiments.
type Wiretap struct {
	MAC net.HardwareAddr // of the interface

	fd    int
	index int
}

// Wiretap opens an interface until the end of the spec.
func (h *Host) Wiretap(name string) Wiretap {
	ginkgo.GinkgoHelper()
	var t Wiretap
	h.Do(func() {
		dev := Must(net.InterfaceByName(name))
		t.index, t.MAC = dev.Index, dev.HardwareAddr
		t.fd = Must(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(bigEndian(etherType))))
		at := unix.SockaddrLinklayer{Protocol: bigEndian(etherType), Ifindex: t.index}
		gomega.Expect(unix.Bind(t.fd, &at)).To(gomega.Succeed())
	})
	ginkgo.DeferCleanup(func() { _ = unix.Close(t.fd) })
	return t
}

func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// Send sends a frame with a text from src to dst.
func (t Wiretap) Send(src, dst net.HardwareAddr, text string) {
	ginkgo.GinkgoHelper()
	frame := append(append([]byte{}, dst...), src...)
	frame = binary.BigEndian.AppendUint16(frame, etherType)
	t.SendFrame(append(frame, text...))
}

// SendFrame sends a frame as it is, with its header.
func (t Wiretap) SendFrame(frame []byte) {
	ginkgo.GinkgoHelper()
	gomega.Expect(unix.Sendto(t.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: t.index})).To(gomega.Succeed())
}

// Next returns the text of the next received frame.
func (t Wiretap) Next() string {
	ginkgo.GinkgoHelper()
	return t.within(Hang)
}

// Nothing checks that no frame is received for a while.
func (t Wiretap) Nothing() {
	ginkgo.GinkgoHelper()
	gomega.Expect(t.within(300 * time.Millisecond)).To(gomega.BeEmpty())
}

// within returns the text of the next received frame, or "" if there is none.
func (t Wiretap) within(limit time.Duration) string {
	ginkgo.GinkgoHelper()
	for buf := make([]byte, 2048); ; {
		wait := unix.NsecToTimeval(Patience(limit).Nanoseconds())
		gomega.Expect(unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)).To(gomega.Succeed())
		n, from, err := unix.Recvfrom(t.fd, buf, 0)
		if err == unix.EAGAIN {
			return ""
		}
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING && n > 14 {
			return string(buf[14:n])
		}
	}
}

// AdvertiseRouter sends a router advertisement (RFC 4861, section 4.2) with a prefix from an interface to all nodes.
func (h *Host) AdvertiseRouter(ifName, prefix string) {
	ginkgo.GinkgoHelper()
	ra := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, // a router for 1800 s
		3, 4, 64, 0xc0, 0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0, 0, 0} // on link, autonomous
	ra = append(ra, netip.MustParseAddr(prefix).AsSlice()...)
	h.Do(func() {
		all := unix.SockaddrInet6{ZoneId: uint32(Must(net.InterfaceByName(ifName)).Index),
			Addr: netip.MustParseAddr("ff02::1").As16()}
		fd := Must(unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6))
		defer unix.Close(fd)
		gomega.Expect(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255)).To(gomega.Succeed())
		gomega.Expect(unix.Sendto(fd, ra, 0, &all)).To(gomega.Succeed())
	})
}
