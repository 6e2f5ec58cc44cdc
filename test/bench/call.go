package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

type object = map[string]any

// plugins are a directory of them.
type plugins struct {
	name     string
	dir      string   // one of the copies
	copies   []string // directories
	versions []string // of the specification
	nft      bool     // whether they know the nftables backends
}

// has tells whether a plugin is there.
func (p *plugins) has(plugin string) bool {
	_, err := os.Stat(filepath.Join(p.dir, plugin))
	return err == nil
}

// turn takes a copy of the programs for a round. How long one file takes to start depends on how the page cache
// holds it, by up to a sixth.
func (p *plugins) turn(round int) { p.dir = p.copies[(round+len(p.copies))%len(p.copies)] }

// call is one call of one plugin.
type call struct {
	verb, plugin   string
	id, ifName, ns string
	conf           object
}

// spent is what a call took, milliseconds.
type spent struct {
	wall, cpu float64
	result    json.RawMessage
}

// start is how the plugin of a call is started.
func (c call) start(p *plugins) (path string, env []string, stdin []byte, err error) {
	env = []string{"CNI_COMMAND=" + c.verb, "CNI_CONTAINERID=" + c.id, "CNI_NETNS=" + c.ns, "CNI_IFNAME=" + c.ifName,
		"CNI_PATH=" + p.dir, "PATH=" + os.Getenv("PATH")}
	stdin, err = json.Marshal(c.conf)
	return filepath.Join(p.dir, c.plugin), env, stdin, err
}

// timed serves a call on the calling thread and takes its time: from the start of
// the program to its end.
func (c call) timed(p *plugins) (spent, error) {
	path, env, stdin, err := c.start(p)
	if err != nil {
		return spent{}, err
	}
	var pipes [3][2]int // of stdin, stdout and stderr: the end to read, the end to write
	for i := range pipes {
		if err := unix.Pipe2(pipes[i][:], unix.O_CLOEXEC); err != nil {
			return spent{}, err
		}
		// So that all fits, and nobody here has to write or read meanwhile.
		_, _ = unix.FcntlInt(uintptr(pipes[i][1]), unix.F_SETPIPE_SZ, 1<<20)
		defer func() { _ = unix.Close(pipes[i][0]) }()
	}
	if n, err := unix.Write(pipes[0][1], stdin); err != nil || n != len(stdin) {
		return spent{}, fmt.Errorf("%d of %d bytes of configuration written: %w", n, len(stdin), err)
	}
	_ = unix.Close(pipes[0][1])
	began := time.Now()
	pid, err := syscall.ForkExec(path, []string{path}, &syscall.ProcAttr{Env: env,
		Files: []uintptr{uintptr(pipes[0][0]), uintptr(pipes[1][1]), uintptr(pipes[2][1])}})
	var status syscall.WaitStatus
	var usage syscall.Rusage
	if err == nil {
		_, err = syscall.Wait4(pid, &status, 0, &usage)
	}
	wall := time.Since(began)
	_, _ = unix.Close(pipes[1][1]), unix.Close(pipes[2][1])
	if err != nil {
		return spent{}, fmt.Errorf("run %s: %w", path, err)
	}
	s := spent{wall: ms(wall), cpu: ms(time.Duration(usage.Utime.Nano() + usage.Stime.Nano()))}
	return s, c.ended(&s, status.ExitStatus(), drain(pipes[1][0]), drain(pipes[2][0]))
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func drain(fd int) string {
	var text strings.Builder
	buffer := make([]byte, 1<<16)
	for {
		n, err := unix.Read(fd, buffer)
		if n <= 0 || err != nil {
			return text.String()
		}
		text.Write(buffer[:n])
	}
}

// ended keeps the result, or tells the failure.
func (c call) ended(s *spent, exit int, stdout, stderr string) error {
	if exit != 0 {
		return fmt.Errorf("%s %s: exit %d: %s %s", c.plugin, c.verb, exit, strings.TrimSpace(stdout),
			strings.TrimSpace(stderr))
	}
	if c.verb == "ADD" {
		s.result = json.RawMessage(stdout)
	}
	return nil
}

// counted serves a call under trace.
func (c call) counted(p *plugins) (counts, json.RawMessage, error) {
	path, env, stdin, err := c.start(p)
	if err != nil {
		return counts{}, nil, err
	}
	r, err := trace.Run(trace.Command{Path: path, Env: env, Stdin: string(stdin)})
	if err != nil {
		return counts{}, nil, err
	}
	n := counts{programs: len(r.Programs)}
	for _, p := range r.Programs {
		n.syscalls += p.Syscalls
		n.messages += len(p.Messages)
		n.peak = max(n.peak, p.Peak)
	}
	s := spent{}
	err = c.ended(&s, r.Exit, r.Stdout, r.Stderr)
	return n, s.result, err
}

// counts are what was counted in calls that were traced.
type counts struct {
	programs, syscalls, messages int
	peak                         int64 // memory of the largest program, bytes
}

func (n *counts) add(more counts) {
	n.programs += more.programs
	n.syscalls += more.syscalls
	n.messages += more.messages
	n.peak = max(n.peak, more.peak)
}

// merged is an object with the keys of all.
func merged(all ...object) object {
	sum := object{}
	for _, o := range all {
		maps.Copy(sum, o)
	}
	return sum
}
