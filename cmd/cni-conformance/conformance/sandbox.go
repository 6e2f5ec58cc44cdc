package conformance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	suiteDir = "/run/cni-conformance" // in the namespaces of a job
	netnsDir = "/run/netns"
)

// job is a case with a subject: the input of a child process.
type job struct {
	Subject subject
	Info    info
	Spec    string
	Case    string // name of the case; empty for the probe
}

// limit returns the time limit of a call, which follows the duration of the probe's ADD on this machine.
func (j job) limit() time.Duration { return max(time.Minute, 100*j.Info.AddTime) }

type status string

const passed, failed, skipped, broken status = "ok", "failed", "skipped", "cannot run"

// outcome is the outcome of a job: the output of its process.
type outcome struct {
	Status status
	Detail string
	Calls  []string // the last three calls, if the case failed
	Info   info     // of the probe
	Took   time.Duration
}

// runJob runs a job in a child process with new namespaces.
func runJob(ctx context.Context, j job, stderr *os.File) outcome {
	begin := time.Now()
	limit := 3 * j.limit()
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", caseFlag)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(encode(j)), &out, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	if uid := os.Geteuid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	var o outcome
	err := cmd.Run()
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &o)
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		o = outcome{Status: broken, Detail: "interrupted"}
	case ctx.Err() != nil:
		o = outcome{Status: failed, Detail: fmt.Sprintf("%s did not end within %v", cmp.Or(j.Case, "the probe"), limit)}
	case err != nil && cmd.ProcessState == nil:
		o = outcome{Status: broken, Detail: "namespaces: " + err.Error() + "; run as root, or allow user namespaces"}
	case err != nil:
		o = outcome{Status: broken, Detail: "the process of the case failed: " + err.Error()}
	}
	o.Detail, o.Took = printable(o.Detail), time.Since(begin)
	return o
}

// serveCase is the main function of the child process.
func serveCase(stdin, stdout, stderr *os.File) error {
	var j job
	if err := json.NewDecoder(stdin).Decode(&j); err != nil {
		return err
	}
	path, err := enter(j.Subject.Options.Path)
	if err == nil {
		err = prepareHost(j.Subject.Options.Setup, path, stderr)
	}
	if err != nil {
		return json.NewEncoder(stdout).Encode(outcome{Status: broken, Detail: err.Error()})
	}
	return json.NewEncoder(stdout).Encode((&world{job: j, path: path}).runCase())
}

// enter mounts /proc, /sys and directories in memory in the new mount namespace, and makes everything else read-only.
// It returns the paths at which the directories with plugins are visible afterwards.
func enter(plugins []string) (path []string, err error) {
	if err := mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE); err != nil {
		return nil, err
	}
	var dirs []*os.File
	for _, dir := range plugins {
		if f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
			defer f.Close()
			dirs = append(dirs, f)
		}
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &readOnly); err != nil {
		return nil, fmt.Errorf("make the machine's files read-only, which needs Linux 5.12: %w", err)
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC); err != nil {
		return nil, err
	}
	// The kernel refuses a new /sys if a container engine masks parts of it. The machine's /sys then stays, read-only.
	_ = mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
	for _, dir := range []string{"/run", "/var/lib", "/var/log", "/tmp"} {
		err := mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
	}
	for _, dir := range []string{"/run/lock", netnsDir, suiteDir + "/calls", suiteDir + "/delegate"} {
		err = errors.Join(err, os.MkdirAll(dir, 0o755))
	}
	for i, f := range dirs {
		path = append(path, fmt.Sprintf("%s/path/%d", suiteDir, i))
		err = errors.Join(err, os.MkdirAll(path[i], 0o755),
			mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), path[i], "", unix.MS_BIND|unix.MS_REC))
	}
	return path, err
}

// tmpfsDirs returns the directories in memory, also if the setup commands mounted them.
func tmpfsDirs() (dirs []string) {
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == "tmpfs" && strings.HasPrefix(f[3], "rw") {
			dirs = append(dirs, f[1])
		}
	}
	return dirs
}

func mount(source, target, kind string, flags uintptr) error {
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// prepareHost sets lo up and runs the setup commands.
func prepareHost(setup string, path []string, stderr *os.File) error {
	cmd := exec.Command("sh", "-ec", "ip link set lo up\nexport CNI_PATH="+strings.Join(path, ":")+"\n"+setup)
	cmd.Stdout, cmd.Stderr = stderr, stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("prepare the host of a case with ip (iproute2) and the commands of --setup: %w", err)
	}
	return nil
}

// command runs a program and returns its standard output.
func command(stdin, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
