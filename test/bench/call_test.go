package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

type object = plugintest.Object

// plugins are a directory of them.
type plugins struct {
	name     string
	dir      string   // one of the copies
	copies   []string // directories
	versions []string // of the specification
	nft      bool     // whether they know the nftables backends
}

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

func (c call) command(p *plugins) trace.Command {
	return trace.Command{Path: filepath.Join(p.dir, c.plugin), Stdin: plugintest.Text(c.conf), Env: []string{
		"CNI_COMMAND=" + c.verb, "CNI_CONTAINERID=" + c.id, "CNI_NETNS=" + c.ns, "CNI_IFNAME=" + c.ifName,
		"CNI_PATH=" + p.dir, "PATH=" + os.Getenv("PATH")}}
}

// timed serves a call on the calling thread and takes its time: from the start of the program to its end.
func (c call) timed(p *plugins) (spent, error) {
	GinkgoHelper()
	command := c.command(p)
	var reads, writes [3]*os.File // of stdin, stdout and stderr
	var err error
	for i := range reads {
		reads[i], writes[i], err = os.Pipe()
		Expect(err).NotTo(HaveOccurred())
		defer reads[i].Close()
		// So that all fits, and nobody here has to write or read meanwhile.
		_, _ = unix.FcntlInt(writes[i].Fd(), unix.F_SETPIPE_SZ, 1<<20)
	}
	nstest.Must(writes[0].WriteString(command.Stdin))
	_ = writes[0].Close()
	attr := syscall.ProcAttr{Env: command.Env, Files: []uintptr{reads[0].Fd(), writes[1].Fd(), writes[2].Fd()}}
	began := time.Now()
	pid, err := syscall.ForkExec(command.Path, []string{command.Path}, &attr)
	var status syscall.WaitStatus
	var usage syscall.Rusage
	if err == nil {
		_, err = syscall.Wait4(pid, &status, 0, &usage)
	}
	wall := time.Since(began)
	_, _ = writes[1].Close(), writes[2].Close()
	if err != nil {
		return spent{}, fmt.Errorf("run %s: %w", command.Path, err)
	}
	stdout, _ := io.ReadAll(reads[1])
	stderr, _ := io.ReadAll(reads[2])
	return spent{ms(wall), ms(time.Duration(usage.Utime.Nano() + usage.Stime.Nano())), stdout},
		c.failure(status.ExitStatus(), stdout, stderr)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (c call) failure(exit int, stdout, stderr []byte) error {
	if exit == 0 {
		return nil
	}
	return fmt.Errorf("%s %s: exit %d: %s", c.plugin, c.verb, exit,
		strings.Join(strings.Fields(string(stdout)+string(stderr)), " "))
}

// counted serves a call under trace.
func (c call) counted(p *plugins) (counts, json.RawMessage, error) {
	r, err := trace.Run(c.command(p))
	if err != nil {
		return counts{}, nil, err
	}
	n := counts{programs: len(r.Programs)}
	for _, p := range r.Programs {
		n.syscalls += p.Syscalls
		n.messages += len(p.Messages)
		n.peak = max(n.peak, p.Peak)
	}
	return n, []byte(r.Stdout), c.failure(r.Exit, []byte(r.Stdout), []byte(r.Stderr))
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
