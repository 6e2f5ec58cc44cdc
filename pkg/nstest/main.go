// Package nstest runs specs in network namespaces of their own, as root or as
// an ordinary user, without touching the machine they run on.
//
// A test package hands its TestMain to [Main], makes namespaces with [NewHost] and [NewNetns], works in them
// through [Host.Do] and [Host.Cmd], and says with [Need] which features of the kernel a spec cannot do without.
// Specs whose feature some kernels lack carry Label("kernel"), so that they can be run alone on another kernel.
//
// The environment of a run:
//
//	NSTEST_REQUIRE=1    a skip is a failure, except in specs labelled "kernel"
//	NSTEST_REQUIRE=all  a skip is a failure
//	NSTEST_SKIPLOG      file that gets one line for each skipped spec
//	NSTEST_SLOWNESS     factor by which the machine is slower than usual ([Patience])
//	HAWSER_BIN          directory of built plugins; without it [Build] compiles them
package nstest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// Steps of the re-execution, told to the next process in stageEnv.
const (
	stageEnv = "NSTEST_STAGE"
	workEnv  = "NSTEST_WORKDIR"

	stageInit   = "init"   // PID 1 of the new namespaces: mounts, starts the tests, reaps
	stageInside = "inside" // the tests themselves
	// A fuzz worker that was started once more, by confine.
	stageConfined = "confined"
)

// run is what one test process knows about its surroundings.
var run = struct {
	unavailable string // why no namespaces can be made here; empty when they can
	workDir     string // removed when the run is over
}{unavailable: noMain}

const noMain = "this package's TestMain does not call nstest.Main"

// Main runs the tests of a package in new mount, PID, IPC, UTS and network namespaces (and a new user namespace
// with mapped root where we have no CAP_SYS_ADMIN), with an own /proc and an empty /run, and exits. Where the
// kernel refuses that, the tests run in place and every spec that asks for a namespace is skipped with the
// kernel's error. The workers of a fuzz target can not even write files.
func Main(m *testing.M) {
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
		ginkgo.ReportAfterEach(watchSkips)
		gomega.SetDefaultEventuallyTimeout(Patience(Hang))
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
		gomega.SetDefaultEventuallyTimeout(Patience(Hang))
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// RunSpecs runs the specs of a package as its one test.
func RunSpecs(t *testing.T, name string) {
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, name)
}

// Must is the value of a call that may not fail.
func Must[T any](value T, err error) T {
	ginkgo.GinkgoHelper()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	return value
}

// fixSeed makes the order of the specs, and what they do at random, the same in each run, so that
// what passed once passes again. -ginkgo.seed is for another.
func fixSeed() {
	given := func(arg string) bool { return strings.HasPrefix(strings.TrimLeft(arg, "-"), "ginkgo.seed") }
	if !slices.ContainsFunc(os.Args[1:], given) {
		os.Args = append(os.Args, "-ginkgo.seed=1")
	}
}

// reexec runs this program again in new namespaces. The error says why that is
// impossible; in that case no test has run.
func reexec(dir string) (int, error) {
	// Pdeathsig is the thread's, not the process's.
	runtime.LockOSThread()
	report, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = report.Close() }()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
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
	told, _ := io.ReadAll(report)
	err = cmd.Wait()
	if string(told) != "ok" {
		return 0, fmt.Errorf("new namespaces: %s", told)
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
	// In the machine's network namespace a user namespace takes all rights away.
	if parallel || !hasCapability(unix.CAP_SYS_ADMIN) {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}

// ginkgoParallel reports whether the ginkgo command runs us as one process of
// several: they speak with it over the machine's loopback.
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

// forwardSignals passes on what go test and terminals send; the result ends it.
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
