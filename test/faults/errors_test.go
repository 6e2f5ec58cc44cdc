// Package faults_test kills the plugins at each of their system calls, makes each of these calls fail, and checks that
// nothing is lost or left behind.
package faults_test

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

func TestMain(m *testing.M) {
	if program := os.Getenv(launchEnv); program != "" {
		fmt.Fprintln(os.Stderr, "launch:", launch(program))
		os.Exit(1)
	}
	nstest.Main(m)
}

var _ = It("a scenario exists for each plugin", func() {
	var have []string
	for _, s := range scenarios() {
		have = append(have, s.plugin())
	}
	Expect(have).To(ContainElements(nstest.Plugins()))
})

func TestFaults(t *testing.T) { nstest.RunSpecs(t, "faults: kills and errors at every system call") }

// nodesAtOnce allows for calls that spend half of their time waiting for the kernel, and casesPerNode for the creation
// of a node, which takes as long as some cases.
const (
	nodesAtOnce  = 4
	casesPerNode = 4
)

// errRetire means that a case passed, and that its node cannot be used again.
var errRetire = errors.New("retire the node")

// trial is one case of a scenario.
type trial interface {
	// play disturbs a call and checks its outcome. hit is false if the call ended before the fault could happen.
	play(n *node) (hit bool, err error)
}

// tally counts the results of a scenario's cases.
type tally struct {
	sync.Mutex
	hits   int
	failed []string
}

func (t *tally) count(hit bool, err error) {
	t.Lock()
	defer t.Unlock()
	if hit {
		t.hits++
	}
	if err != nil {
		t.failed = append(t.failed, err.Error())
	}
}

// each plays a sample of the cases on several nodes in parallel, and fails with all errors.
func each[T trial](l *lesson, all []T) {
	GinkgoHelper()
	cases := sample(all)
	var t tally
	playAll(l, cases, &t)
	if 2*t.hits <= len(cases) { // play as many again, because this may be chance
		more := all[len(cases):min(len(all), 2*len(cases))]
		playAll(l, more, &t)
		cases = all[:len(cases)+len(more)]
	}
	AddReportEntry(fmt.Sprintf("%s: %d of %d cases (seed %d), %d hit", l.Name, len(cases), len(all), GinkgoRandomSeed(),
		t.hits))
	if len(t.failed) > 0 {
		Fail(fmt.Sprintf("%d of %d cases:\n    %s", len(t.failed), len(cases), strings.Join(t.failed, "\n    ")))
	}
	Expect(2*t.hits).To(BeNumerically(">", len(cases)), "%d of %d cases hit", t.hits, len(cases))
}

// playAll plays cases on several nodes in parallel.
func playAll[T trial](l *lesson, cases []T, t *tally) {
	todo := make(chan T, len(cases))
	for _, c := range cases {
		todo <- c
	}
	close(todo)
	var workers sync.WaitGroup
	for range min(nodesAtOnce, (len(cases)+casesPerNode-1)/casesPerNode) {
		workers.Go(func() {
			defer GinkgoRecover()
			work(l, todo, t)
		})
	}
	workers.Wait()
}

// tries is the maximum number of plays of a case until its fault happens, because threads differ between plays.
const tries = 3

// work plays cases on one node, and replaces a node that cannot be used again.
func work[T trial](l *lesson, todo <-chan T, t *tally) {
	var n *node
	for c := range todo {
		var hit bool
		var err error
		for try := 0; try < tries && !hit && err == nil; try++ {
			n, hit, err = turn(l, n, c)
		}
		t.count(hit, err)
	}
}

// turn plays a case on the node, or on a new one if n is nil. It returns the node for the next case, or nil if the node
// cannot be used again.
func turn[T trial](l *lesson, n *node, c T) (next *node, hit bool, err error) {
	if n == nil {
		n, err = l.take()
	}
	if err == nil {
		hit, err = c.play(n)
	}
	if err != nil || l.Cold {
		n.retire()
		n = nil
	}
	if errors.Is(err, errRetire) {
		err = nil
	}
	return n, hit, err
}

// sampleSize and quickSize are the numbers of cases of a scenario that a run plays, quickSize in a quick run.
const sampleSize, quickSize = 14, 4

// sample chooses some of the cases, the same for the same seed, unless HAWSER_FAULTS is all or messages.
func sample[T any](cases []T) []T {
	if everything() {
		return cases
	}
	random := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0))
	random.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	size := sampleSize
	switch {
	case nstest.Quick():
		size = quickSize
	case nstest.Patience(time.Second) > time.Second: // an emulated machine
		size /= 4
	}
	return cases[:min(len(cases), size)]
}

// everything reports whether all cases are played.
func everything() bool { return os.Getenv("HAWSER_FAULTS") == "all" || messages() }

// messages reports whether only errors of netlink messages are injected, all of them.
func messages() bool { return os.Getenv("HAWSER_FAULTS") == "messages" }

// call is one watched system call before it is made.
type call struct {
	N    int // of all threads and children together, from 1
	Name string
	Pid  int // of the process
	Main bool
	Args [6]uint64

	Program  string // that the process runs
	File     string // target of a descriptor or a path, if it is known
	Failures int    // number of ways in which it can fail
}

func callName(nr uint64) string {
	if name, ok := watched[nr]; ok {
		return name
	}
	return older[nr]
}

// String returns the call for messages, such as "17 bridge openat /run/hawser/nft.lock".
func (c call) String() string {
	s := fmt.Sprintf("%d %s %s %s", c.N, c.Program, c.Name, c.File)
	switch c.Name {
	case "openat", "fcntl", "flock", "setsockopt":
		s += fmt.Sprintf(" %#x %#x", uint32(c.Args[1]), c.Args[2])
	}
	return strings.TrimSpace(s)
}

// ours reports whether the program is one of the plugins.
func (c call) ours() bool { return !strings.Contains(c.Program, "tables") }

func (c call) is(names ...string) bool { return slices.Contains(names, c.Name) }

// describe sets the call's program and file. The caller waits for the monitor's answer, so nothing changes.
func (c *call) describe(tid int) {
	program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", tid))
	c.Program = filepath.Base(program)
	switch {
	case c.is("openat", "openat2", "mkdirat", "unlinkat", "readlinkat", "faccessat", "faccessat2", "newfstatat",
		"statx", "fchmodat", "utimensat", "mknodat"):
		c.File = pathAt(tid, c.Args[0], c.Args[1])
	case c.is("linkat", "renameat", "renameat2"):
		c.File = pathAt(tid, c.Args[2], c.Args[3])
	case c.is("symlinkat"):
		c.File = pathAt(tid, c.Args[1], c.Args[2])
	case c.is("execve", "open", "access", "readlink", "unlink"):
		c.File = trace.Text(tid, c.Args[0])
	case c.is("sendto") && c.Args[4] != 0 && family(tid, c.Args[4]) == unix.AF_NETLINK:
		c.File = "netlink"
	case c.is("read", "pread64", "readv", "write", "pwrite64", "writev", "close", "fstat", "getdents64", "fsync",
		"fdatasync", "ftruncate",
		"fchmod", "fcntl", "flock", "ioctl", "setns", "dup3", "dup2", "bind", "connect", "setsockopt", "getsockopt",
		"sendto", "sendmsg",
		"recvfrom", "recvmsg"):
		c.File = descriptor(tid, c.Args[0])
	}
}

func pathAt(tid int, dir, name uint64) string {
	path := ""
	if name != 0 {
		path = trace.Text(tid, name)
	}
	if filepath.IsAbs(path) || int32(dir) == unix.AT_FDCWD {
		return path
	}
	return filepath.Join(descriptor(tid, dir), path)
}

func descriptor(tid int, fd uint64) string {
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(fd)))
	if err != nil {
		return fmt.Sprintf("fd %d", int32(fd))
	}
	if kind, _, ok := strings.Cut(to, ":["); ok {
		return kind
	}
	return to
}

func family(tid int, address uint64) uint16 {
	b := trace.Memory(tid, address, 2)
	if len(b) < 2 {
		return unix.AF_UNSPEC
	}
	return binary.NativeEndian.Uint16(b)
}

func poke(tid int, address uint64, data []byte) error {
	local := []unix.Iovec{{Base: &data[0]}}
	local[0].SetLen(len(data))
	n, err := unix.ProcessVMWritev(tid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(data)}}, 0)
	if err == nil && n != len(data) {
		err = unix.EFAULT
	}
	return err
}

// watched has the calls that can fail or that change something outside of the process, by number. Calls of the Go
// runtime for itself (memory, threads, signals, polling) are not watched, because their failure ends the process, like
// a kill.
var watched = map[uint64]string{
	unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_LINKAT: "linkat",
	unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
	unix.SYS_UNLINKAT: "unlinkat", unix.SYS_MKNODAT: "mknodat", unix.SYS_FCHMOD: "fchmod",
	unix.SYS_FCHMODAT: "fchmodat", unix.SYS_UTIMENSAT: "utimensat", unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_READ: "read", unix.SYS_PREAD64: "pread64",
	unix.SYS_READV: "readv", unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_WRITEV: "writev",
	unix.SYS_NEWFSTATAT: "newfstatat", unix.SYS_FSTAT: "fstat", unix.SYS_STATX: "statx",
	unix.SYS_GETDENTS64: "getdents64", unix.SYS_READLINKAT: "readlinkat", unix.SYS_FACCESSAT: "faccessat",
	unix.SYS_FACCESSAT2: "faccessat2", unix.SYS_CLOSE: "close", unix.SYS_DUP3: "dup3", unix.SYS_FCNTL: "fcntl",
	unix.SYS_FLOCK: "flock", unix.SYS_IOCTL: "ioctl", unix.SYS_PIPE2: "pipe2", unix.SYS_MEMFD_CREATE: "memfd_create",
	unix.SYS_PPOLL: "ppoll", unix.SYS_SOCKET: "socket", unix.SYS_BIND: "bind", unix.SYS_CONNECT: "connect",
	unix.SYS_SETSOCKOPT: "setsockopt", unix.SYS_GETSOCKOPT: "getsockopt", unix.SYS_SENDTO: "sendto",
	unix.SYS_SENDMSG: "sendmsg", unix.SYS_RECVFROM: "recvfrom", unix.SYS_RECVMSG: "recvmsg", unix.SYS_SETNS: "setns",
	unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3", unix.SYS_EXECVE: "execve", unix.SYS_WAIT4: "wait4",
	unix.SYS_WAITID: "waitid", unix.SYS_INOTIFY_INIT1: "inotify_init1",
	unix.SYS_INOTIFY_ADD_WATCH: "inotify_add_watch",
}

// changing has the calls that may change something outside of the process. It omits locks, which end with the process.
var changing = strings.Fields("openat open mkdirat linkat symlinkat renameat renameat2 unlinkat unlink mknodat " +
	"fchmod fchmodat utimensat ftruncate write pwrite64 writev sendto sendmsg execve clone clone3 fork vfork")

// changes reports whether the call changes something outside of the process.
func (c call) changes(tid int) bool {
	switch c.Name {
	case "openat":
		return c.Args[2]&(unix.O_CREAT|unix.O_TRUNC) != 0 // a file that O_TMPFILE makes has no name
	case "open":
		return c.Args[1]&(unix.O_CREAT|unix.O_TRUNC) != 0
	case "sendto":
		return !asks(tid, c)
	}
	return c.is(changing...)
}

// asks reports whether a message to the kernel only requests information.
func asks(tid int, c call) bool {
	header := trace.Memory(tid, c.Args[1], unix.SizeofNlMsghdr)
	if len(header) < unix.SizeofNlMsghdr {
		return false
	}
	switch typ := binary.NativeEndian.Uint16(header[4:]); {
	case typ>>8 == unix.NFNL_SUBSYS_NFTABLES: // changes come in a batch
		return true
	case typ>>8 == 0:
		return typ >= unix.RTM_BASE && typ%4 == unix.RTM_GETLINK%4
	}
	return false
}

// failing is one case: the call at which an error is injected into ADD or DEL.
type failing struct {
	command string
	fault   fault
}

var _ = Describe("an error at every call", Label("kernel", "error", "slow"), func() {
	for _, s := range scenarios() {
		It("of "+s.Name+" leaves nothing half done", s.labels(), func() {
			nstest.Need(s.Needs...)
			l := learn(s)
			each(l, failings(l))
		})
	}
})

func failings(l *lesson) (cases []failing) {
	for _, command := range l.commands() {
		for _, c := range l.calls(command, fault{}) {
			if messages() && c.File != "netlink" {
				continue
			}
			for pick := range c.Failures {
				cases = append(cases, failing{command, fault{At: c.N, Fail: true, Pick: pick}})
			}
		}
	}
	return cases
}

func (c failing) play(n *node) (hit bool, err error) {
	out, prev, err := n.disturbed(c.command, c.fault)
	if err == nil && out.Hit == nil { // the call ended earlier this time
		return false, n.del(out.Stdout)
	}
	switch {
	case err != nil:
	case out.Exit != 0:
		err = errors.Join(explained(out), c.repeat(n, prev))
	case c.command == "ADD":
		err = n.isWhole(out)
	default:
		err = n.isGone(out)
	}
	if err == nil || errors.Is(err, errRetire) {
		return true, err
	}
	return true, fmt.Errorf("%s: %s at call %s:\n        %w\n        %s%s", c.command, out.Injected, out.Hit, err,
		out.Stdout, out.Stderr)
}

// repeat checks that a failed ADD has left nothing, or that the repetition of a failed DEL leaves nothing.
func (c failing) repeat(n *node, prev string) error {
	if c.command == "ADD" {
		if err := errors.Join(n.isClean(), n.del("")); err != nil || !n.Cold {
			return err
		}
		result, err := n.add()
		return errors.Join(err, n.del(result), n.isCleanAgain())
	}
	return errors.Join(n.del(prev), n.isClean())
}

// isWhole checks that an ADD that succeeded did everything that an undisturbed ADD does.
func (n *node) isWhole(out outcome) error {
	if got := n.normal(out.Stdout); got != n.result {
		return errors.New("succeeds, with another result")
	}
	if key, ok := strings.CutPrefix(out.Hit.File, "/proc/sys/net/"); ok && final[out.Injected.errno] {
		// /proc/sys may be read-only; some values only make the network better.
		key = " " + key + ":"
		err := n.state().without(key).differs(n.whole.without(key), nil)
		return cmp.Or(err, errRetire)
	}
	if strings.Contains(out.Stderr, "another ADD of the attachment would not be noticed") {
		// So may /run, if only locks are in it.
		err := n.state().without("/run/hawser").differs(n.whole.without("/run/hawser"), nil)
		return cmp.Or(err, errRetire)
	}
	if err := n.state().differs(n.whole, nil); err != nil {
		return fmt.Errorf("succeeds, with a difference: %w", err)
	}
	return errors.Join(n.del(out.Stdout), n.isCleanAgain())
}

// isGone checks that a DEL that succeeded left nothing. If a container cannot be entered or refuses its former values,
// something may stay. DEL reports this, but must not fail forever.
func (n *node) isGone(out outcome) error {
	if n.Inside && final[out.Injected.errno] && strings.Contains(out.Stderr, out.Injected.errno.Error()) {
		return errors.Join(n.isCleanOutside(), errRetire)
	}
	return n.isClean()
}

// final has the errors that a repetition would cause again.
var final = map[unix.Errno]bool{unix.EPERM: true, unix.EACCES: true, unix.EROFS: true, unix.EINVAL: true,
	unix.EIO: true, unix.EBUSY: true}

// explained checks that there is one error object, that it names the cause, and that the cause is not an interruption.
func explained(out outcome) error {
	text := out.Stdout
	if text == "" { // the write of stdout may have failed
		_, text, _ = strings.Cut(out.Stderr, ": ")
	}
	var e struct {
		Msg, Details string
		Code         uint
	}
	err := json.Unmarshal([]byte(text), &e)
	said, cause := e.Msg+" "+e.Details, out.Injected.errno.Error()
	if !out.Hit.ours() {
		cause = "tables" // the name of the program
	}
	switch {
	case out.Exit != 1 || err != nil || e.Code == 0 || e.Msg == "":
		return fmt.Errorf("exit %d without an error object", out.Exit)
	case strings.Contains(said, "goroutine "):
		return errors.New("a panic")
	case out.Injected.errno == unix.EINTR && out.Hit.ours():
		return errors.New("an interrupted call was not repeated")
	case !strings.Contains(said, cause):
		return fmt.Errorf("the error does not say %q", cause)
	}
	return nil
}

// killing is one case: the call at which ADD or DEL is killed, and the command that cleans up.
type killing struct {
	command string
	fault   fault
	remedy  string // DEL or GC
}

var _ = Describe("a kill at every call", Label("kernel", "killed"), func() {
	for _, s := range scenarios() {
		It("of "+s.Name+" loses nothing", s.labels(), func() {
			nstest.Need(s.Needs...)
			l := learn(s)
			each(l, killings(l))
		})
	}
})

// killings returns all cases of a scenario. A kill before a call that changes nothing is like a kill before the next
// one that does, so only the latter count; HAWSER_FAULTS=all includes each call.
func killings(l *lesson) (cases []killing) {
	for _, command := range l.commands() {
		f := fault{Changes: !everything()}
		for _, c := range l.calls(command, f) {
			f.At = c.N
			f.Kill, f.Alone = true, false
			cases = append(cases, killing{command, f, "DEL"}, killing{command, f, "GC"})
			if !c.Main {
				f.Kill, f.Alone = false, true
				cases = append(cases, killing{command, f, "DEL"})
			}
		}
	}
	return cases
}

// play kills a call, cleans up, and checks that nothing is left and that nothing prevents the next ADD.
func (k killing) play(n *node) (hit bool, err error) {
	out, prev, err := n.disturbed(k.command, k.fault)
	if err != nil {
		return false, err
	}
	if out.Hit == nil { // the call ended earlier this time
		return false, n.del(cmp.Or(prev, out.Stdout))
	}
	if err := k.recover(n, prev); err != nil {
		return true, fmt.Errorf("%s at call %s:\n        %w", k, out.Hit, err)
	}
	return true, nil
}

func (k killing) String() string {
	if k.fault.Alone {
		return k.command + ", killed without its children, then " + k.remedy
	}
	return k.command + ", killed, then " + k.remedy
}

func (k killing) recover(n *node, prev string) error {
	if err := n.quiet(k.remedy, prev); err != nil {
		return err
	}
	if k.remedy == "GC" && n.Inside {
		return cmp.Or(n.isCleanOutside(), errRetire)
	}
	if err := n.isClean(); err != nil || k.command == "DEL" || k.remedy == "GC" {
		return err // the next case begins with an ADD
	}
	result, err := n.add()
	if err != nil {
		return err
	}
	if err := errors.Join(n.del(result), n.isCleanAgain()); err != nil {
		return fmt.Errorf("after the next ADD and DEL: %w", err)
	}
	return nil
}

// lend starts a DHCP server, which lends each container its own address, and the daemon.
func (n *node) lend() {
	n.host.IP("link add cni0 type bridge", "addr add 10.1.0.1/24 dev cni0", "link set cni0 up")
	var own []string
	for i, id := range []string{victim, bystander} {
		client := fmt.Sprintf("% x", "\x00"+id+"/pods/eth0")
		own = append(own, fmt.Sprintf("--dhcp-host=id:%s,10.1.0.%d", strings.ReplaceAll(client, " ", ":"), 2+i))
	}
	plugintest.ServeDHCP(n.host, "cni0", "10.1.0.2,10.1.0.3", own...)
	n.daemon = plugintest.DHCPDaemon(n.host, n.bin)
}

// rest waits until the daemon has served all calls, also calls whose plugin has ended. The daemon serves them in order.
func (n *node) rest() {
	if n.daemon == nil {
		return
	}
	Expect(n.quiet("STATUS", "")).To(Succeed())
	Eventually(func() int { return plugintest.OpenFiles(n.daemon.Process.Pid, "socket:") }).
		Should(Equal(1), "the listening socket")
}

// daemonKill is one case: the call at which the daemon is killed.
type daemonKill struct{ fault }

var _ = It("a kill of dhcp's daemon at every call loses nothing", Label("kernel", "daemon-killed"), func() {
	l := learn(scenarioOf("dhcp"))
	n := nstest.Must(l.node())
	f := fault{Changes: !everything()}
	out, _, err := n.life(f)
	Expect(err).NotTo(HaveOccurred())
	var cases []daemonKill
	for _, c := range out.Calls {
		cases = append(cases, daemonKill{fault{Changes: f.Changes, At: c.N, Kill: true}})
	}
	each(l, cases)
})

func (n *node) startDaemon() {
	making.Lock()
	defer making.Unlock()
	n.daemon = plugintest.DHCPDaemon(n.host, n.bin)
}

// play kills the daemon, starts another one, and checks that it has exactly the leases that were assigned and not
// released.
func (k daemonKill) play(n *node) (hit bool, err error) {
	out, lent, err := n.life(k.fault)
	n.startDaemon()
	if err == nil && lent != "" {
		err = n.quiet("CHECK", lent)
	}
	err = errors.Join(err, n.del(lent), n.isClean())
	if err == nil {
		err = n.serves()
	}
	if err != nil && out.Hit != nil {
		err = fmt.Errorf("the daemon, killed at call %s:\n        %w\n%s", out.Hit, err, out.Stderr)
	}
	return out.Hit != nil, err
}

// serves plays ADD and DEL undisturbed: they succeed and leave nothing.
func (n *node) serves() error {
	result, err := n.add()
	return errors.Join(err, n.del(result), n.isClean())
}

// life makes another daemon, in which the fault happens, take over the leases, serve ADD and DEL, and end. lent is the
// result of an ADD without a DEL.
func (n *node) life(f fault) (out outcome, lent string, err error) {
	GinkgoHelper()
	Expect(n.daemon.Process.Signal(syscall.SIGTERM)).To(Succeed())
	_ = n.daemon.Wait()
	n.daemon = nil
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer GinkgoRecover()
		out, err = run(n.host, nstest.Program{Path: filepath.Join(n.bin, "dhcp"),
			Args: []string{"daemon", "-pidfile", "/run/dhcp.pid"}}, f)
	}()
	hasEnded := func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
	Eventually(func() bool { return hasEnded() || n.quiet("STATUS", "") == nil }).Should(BeTrue())
	lent, failed := n.add()
	if failed == nil && !hasEnded() {
		_ = n.del(lent)
		lent = ""
	}
	n.host.Run(nstest.Program{Path: "sh", Args: []string{"-c", "kill $(cat /run/dhcp.pid)"}})
	<-ended
	return out, lent, err
}
