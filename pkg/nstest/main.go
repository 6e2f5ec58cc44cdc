// Package nstest runs specs in their own network namespaces, as root or as an ordinary user, without touching the
// machine on which they run.
//
// The TestMain of a test package calls [Main]. Its specs create namespaces with [NewHost] and [NewNetns], work in them
// with [Host.Do] and [Host.Cmd], and name with [Need] the features of the kernel that they require. Specs whose feature
// some kernels lack carry Label("kernel"), so that another kernel can run only these.
//
// The environment of a run:
//
//	NSTEST_REQUIRE=1    a skip is a failure, except in specs labeled "kernel"
//	NSTEST_REQUIRE=all  a skip is a failure
//	NSTEST_SKIPLOG      file to which a line is added for each skipped spec
//	NSTEST_QUICK=1      omits the specs labeled "slow" ([Quick])
//	NSTEST_SLOWNESS     factor by which the machine is slower than usual ([Patience])
//	NSTEST_PROGRAMS=1   runs the built plugins where specs call them in their own process
//	HAWSER_BIN          directory of built plugins; without it [Build] compiles them
package nstest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// Stages of the re-execution; stageEnv passes the stage to the next process.
const (
	stageEnv = "NSTEST_STAGE"
	workEnv  = "NSTEST_WORKDIR"

	stageInit   = "init"   // PID 1 of the new namespaces: mounts, starts the tests, reaps
	stageInside = "inside" // the tests themselves
	// A fuzz worker that confine has executed again.
	stageConfined = "confined"
)

// run has the properties of this test process.
var run = struct {
	unavailable string // why namespaces cannot be created; empty if they can
	workDir     string // removed at the end of the run
}{unavailable: noMain}

const noMain = "this package's TestMain does not call nstest.Main"

// The main goroutine keeps the main thread, which cannot end: a goroutine that entered a namespace on it would keep the
// namespace until the process ends.
func init() { runtime.LockOSThread() }

// Main runs the tests of a package in new mount, PID, IPC, UTS and network namespaces (and a new user namespace
// with mapped root without CAP_SYS_ADMIN), with their own /proc, an empty /run and none of the machine's settings
// (machine.go), and exits. If the kernel refuses that, the tests run in place, and each spec that creates a namespace
// skips with the kernel's error. The workers of a fuzz target also cannot write files.
func Main(m *testing.M) {
	runtime.SetDefaultGOMAXPROCS() // package skel sets 1
	switch os.Getenv(stageEnv) {
	case stageInit:
		os.Exit(initMain())
	case stageInside, stageConfined:
		if isFuzzWorker() && os.Getenv(stageEnv) == stageInside {
			fmt.Fprintln(os.Stderr, "nstest: fuzz worker:", confine())
			os.Exit(1)
		}
		run.unavailable, run.workDir = "", os.Getenv(workEnv)
		fixSeed()
		collectRarely()
		ginkgo.ReportAfterEach(watchSkips)
		setPatience()
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "nstest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "nstest:", err)
		os.Exit(1)
	}
	code, err := reexec(dir)
	if err != nil {
		run.unavailable, run.workDir = err.Error(), dir
		ginkgo.ReportAfterEach(watchSkips)
		setPatience()
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// collectRarely makes the garbage collector run less often while the heap is small. Otherwise it takes a fifth of the
// processor time.
func collectRarely() {
	debug.SetGCPercent(1000)
	debug.SetMemoryLimit(256 << 20)
}

// setPatience sets the timeout and the interval of Eventually. Most of its checks start a process.
func setPatience() {
	gomega.SetDefaultEventuallyTimeout(Patience(Hang))
	gomega.SetDefaultEventuallyPollingInterval(30 * time.Millisecond)
}

// RunSpecs runs the specs of a package as its only test. In a [Quick] run it omits the specs labeled "slow".
func RunSpecs(t *testing.T, name string) {
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	if Quick() {
		suite.LabelFilter = quickFilter(suite.LabelFilter)
	}
	ginkgo.RunSpecs(t, name, suite, reporter)
}

// Quick reports whether this run proves each promise of docs/contract.md once and leaves further proofs to
// make test-all. Suites that sample many cases take smaller samples.
func Quick() bool { return os.Getenv("NSTEST_QUICK") != "" }

// quickFilter returns the label filter that adds to filter, which may be empty, the condition "not slow".
func quickFilter(filter string) string {
	if filter == "" {
		return "!slow"
	}
	return "(" + filter + ") && !slow"
}

// Must returns the value of a call that must succeed.
func Must[T any](value T, err error) T {
	ginkgo.GinkgoHelper()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return value
}

// fixSeed makes the order of the specs and their random choices the same in each run, so that a passing run can be
// repeated. -ginkgo.seed selects another seed.
func fixSeed() {
	given := func(arg string) bool { return strings.HasPrefix(strings.TrimLeft(arg, "-"), "ginkgo.seed") }
	if !slices.ContainsFunc(os.Args[1:], given) {
		os.Args = append(os.Args, "-ginkgo.seed=1")
	}
}

// reexec runs this program again in new namespaces. If that is impossible it returns an error, and no test has run.
func reexec(dir string) (int, error) {
	// Pdeathsig is sent when the parent's thread ends, not its process.
	runtime.LockOSThread()
	report, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = report.Close() }()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stageEnv+"="+stageInit, workEnv+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = newNamespaces()
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return 0, fmt.Errorf("new namespaces: %w", err)
	}
	defer forwardSignals(cmd.Process.Pid)()
	state, _ := io.ReadAll(report)
	err = cmd.Wait()
	if string(state) != "ok" {
		return 0, fmt.Errorf("new namespaces: %s", state)
	}
	return exitCode(cmd.ProcessState.Sys().(syscall.WaitStatus)), ignoreExit(err)
}

func newNamespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  unix.SIGKILL,
	}
	parallel := ginkgoParallel()
	if !parallel {
		attr.Cloneflags |= unix.CLONE_NEWNET
	}
	// In a user namespace a process has no rights in the machine's network namespace.
	if parallel || !hasCapability(unix.CAP_SYS_ADMIN) {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}

// ginkgoParallel reports whether the ginkgo command runs this process as one of several, which communicate with it over
// the machine's loopback.
func ginkgoParallel() bool {
	for _, arg := range os.Args[1:] {
		if n, ok := strings.CutPrefix(strings.TrimLeft(arg, "-"), "ginkgo.parallel.total="); ok {
			return n != "1"
		}
	}
	return false
}

func hasCapability(c int) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[c/32].Effective&(1<<(c%32)) != 0
}

// forwardSignals forwards the signals of go test and of terminals until the returned function is called.
func forwardSignals(pid int) func() {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)
	go func() {
		for s := range ch {
			_ = unix.Kill(pid, s.(syscall.Signal))
		}
	}()
	return func() { signal.Stop(ch); close(ch) }
}

func exitCode(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		fmt.Fprintf(os.Stderr, "nstest: the tests were ended by %s\n", ws.Signal())
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

func ignoreExit(err error) error {
	if _, ok := err.(*exec.ExitError); ok {
		return nil
	}
	return err
}

// netnsDir is the directory of ip-netns(8), in which namespaces are pinned. It is a shared mount, so that each Host
// sees all pins.
const netnsDir = "/run/netns"

// initMain is PID 1 of the new namespaces. It tells the parent on descriptor 3 whether they are usable, runs
// the tests as a child, and reaps orphans, which would stay zombies if the tests themselves were PID 1.
func initMain() int {
	report := os.NewFile(3, "report")
	unix.CloseOnExec(3)
	self, err := os.Executable() // before setUp, which replaces the mounts of a chroot
	if err == nil {
		err = setUp()
	}
	if err != nil {
		_, _ = report.WriteString(err.Error())
		return 1
	}
	pid, err := startTests(self)
	if err != nil {
		_, _ = report.WriteString("start the tests: " + err.Error())
		return 1
	}
	_, _ = report.WriteString("ok")
	_ = report.Close()
	defer forwardSignals(pid)()
	for {
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			fmt.Fprintln(os.Stderr, "nstest: wait:", err)
			return 1
		case got == pid:
			return exitCode(ws)
		}
	}
}

func startTests(self string) (int, error) {
	// The PATH of an ordinary user lacks root's programs; the tests run as root.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin"); err != nil {
		return 0, err
	}
	if err := os.Setenv(stageEnv, stageInside); err != nil {
		return 0, err
	}
	return syscall.ForkExec(self, os.Args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
}

// setUp detaches the mounts from the machine's and replaces those that would show or change its state.
func setUp() error {
	if err := detachMounts(); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC); err != nil {
		return err
	}
	if err := errors.Join(settle(), hideEtc()); err != nil {
		return err
	}
	if err := mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV); err != nil {
		return err
	}
	for _, dir := range []string{netnsDir, "/run/lock"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount("tmpfs", netnsDir, "tmpfs", 0); err != nil {
		return err
	}
	if err := mount("none", netnsDir, "", unix.MS_SHARED); err != nil {
		return err
	}
	// Programs of the machine, such as podman, may change its shared memory at any time.
	err := mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if ginkgoParallel() {
		return nil
	}
	// The network namespace was created before root was mapped in its user namespace, so that parts of its /proc/net
	// cannot be read.
	runtime.LockOSThread()
	return unix.Unshare(unix.CLONE_NEWNET)
}

// deepest is the maximum depth of a chroot below the namespace's root, because a path has at most 4096 bytes.
const deepest = 2048

// detachMounts makes the mounts of a new mount namespace private. If / is not a mount point, as in some chroots, it
// becomes one, below a mount that is already private.
func detachMounts() error {
	err := mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	root, err := os.Open("/")
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	// A process outside its root directory can go up to the namespace's root.
	err = errors.Join(unix.Chroot("/proc"), root.Chdir())
	for range deepest {
		err = errors.Join(err, os.Chdir(".."))
	}
	return errors.Join(err, mount("none", ".", "", unix.MS_REC|unix.MS_PRIVATE), root.Chdir(), unix.Chroot("."),
		mount("/", "/", "", unix.MS_BIND|unix.MS_REC), unix.Chroot("/.."), os.Chdir(wd))
}

func mount(source, target, fstype string, flags uintptr) error {
	if err := unix.Mount(source, target, fstype, flags, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// isFuzzWorker reports whether go test started this process to run a fuzz target with generated inputs.
func isFuzzWorker() bool {
	return slices.ContainsFunc(os.Args[1:], func(arg string) bool {
		return arg == "-test.fuzzworker" || arg == "-test.fuzzworker=true"
	})
}

// confine executes this program again in its own network and mount namespaces, where no input can make a plugin
// change a file. Only the sysctls of the network namespace and directories in memory are writable. confine returns only
// if it fails.
func confine() error {
	// exec turns the calling thread, with its namespaces, into the process.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := confineMounts(); err != nil {
		return err
	}
	if err := os.Setenv(stageEnv, stageConfined); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

func confineMounts() error {
	if err := detachMounts(); err != nil {
		return err
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &readOnly); err != nil {
		return fmt.Errorf("make everything read-only: %w", err)
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC); err != nil {
		return err
	}
	for _, dir := range []string{"/run", "/var/lib", os.TempDir()} {
		if err := mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV); err != nil {
			return err
		}
	}
	return errors.Join(os.Mkdir("/run/lock", 0o755), os.Mkdir(netnsDir, 0o755))
}

// Container returns a network namespace like that of [NewNetns], for a test that is not a spec.
func Container(tb testing.TB, name string) (*Host, error) {
	if run.unavailable != "" {
		return nil, errors.New(run.unavailable)
	}
	h := &Host{Name: name, Path: filepath.Join(netnsDir, name)}
	err := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked, as in create
		err <- h.unshare(false)
	}()
	tb.Cleanup(func() { _ = h.unpin() })
	return h, <-err
}
