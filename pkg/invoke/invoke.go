// Package invoke finds and runs other CNI plugins, as the specification's
// section 4 has a plugin delegate to another.
package invoke

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
)

const (
	// Timeout is how long a delegate may take: less than the two minutes
	// after which a kubelet gives up on us, so that there is time to roll back.
	Timeout = 90 * time.Second
	// UndoTimeout is how long a delegate's DEL may take during a roll-back.
	UndoTimeout = 15 * time.Second

	// outputMax bounds what we keep of a delegate's output, in bytes.
	outputMax = 16 << 20
	// stderrMax bounds what an error quotes of a delegate's stderr, in bytes.
	stderrMax = 4 << 10
	// drain is how long a dead delegate's children may hold its output open.
	drain = time.Second
)

// Runner runs plugins with the environment and the standard error that we
// were given ourselves.
type Runner struct {
	Path   string   // CNI_PATH: directories separated by colons
	Env    []string // our environment, KEY=value
	Stderr io.Writer
}

// Find returns the file of the plugin called name: the first regular file of
// that name in Path. A name that is no plain file name is code 7, a plugin
// that is not there code 4 naming CNI_PATH.
func (r Runner) Find(name string) (string, error) {
	if !cni.ValidType(name) {
		return "", cni.Errorf(cni.CodeConfig, "type: %q is no plugin name (it must be a plain file name)", name)
	}
	for _, dir := range filepath.SplitList(r.Path) {
		if dir == "" {
			continue
		}
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", cni.Errorf(cni.CodeEnvironment, "CNI_PATH: no plugin %q in %q", name, r.Path)
}

// Run runs the plugin called name for command with conf on its standard
// input, and returns its standard output. It dies with us, and at the latest
// after Timeout. Its error object comes back as a *cni.Error with its code;
// one that fails without such an object is code 999 with its standard error in
// the details, one that runs out of time code 11.
func (r Runner) Run(ctx context.Context, name, command string, conf []byte) ([]byte, error) {
	file, err := r.Find(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	stdout, stderr := &limited{max: outputMax}, &limited{max: stderrMax, rolling: true}

	// The parent-death signal is tied to the thread that forks, so that thread
	// must live as long as the delegate.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = retryBusy(ctx, file, func() error {
		cmd := exec.CommandContext(ctx, file)
		cmd.Env = withCommand(r.Env, command)
		cmd.Stdin = bytes.NewReader(conf)
		cmd.Stdout = stdout
		cmd.Stderr = io.MultiWriter(r.Stderr, stderr)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.WaitDelay = drain
		return cmd.Run()
	})
	if err == nil {
		return stdout.Bytes(), nil
	}
	return nil, failure(ctx, name, err, stdout.Bytes(), stderr.Bytes())
}

// failure says what went wrong with a delegate that did not succeed.
func failure(ctx context.Context, name string, err error, stdout, stderr []byte) error {
	details := strings.TrimSpace(string(stderr))
	if ctx.Err() != nil {
		reason := fmt.Sprintf("no answer within %s", Timeout)
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			reason = "stopped: " + context.Cause(ctx).Error()
		}
		return &cni.Error{Code: cni.CodeTryAgain, Msg: fmt.Sprintf("plugin %q: %s", name, reason), Details: details}
	}
	if e, ok := cni.DecodeError(stdout); ok {
		return e
	}
	if details == "" {
		details = quote(stdout)
	}
	return &cni.Error{Code: cni.CodeInternal, Msg: fmt.Sprintf("plugin %q: failed without an error object: %v", name, err), Details: details}
}

// quote shows the beginning of something that should have been JSON.
func quote(data []byte) string {
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return "it printed nothing"
	}
	if len(data) > 200 {
		data = data[:200]
	}
	return fmt.Sprintf("it printed %q", data)
}

// withCommand is env with CNI_COMMAND set to command, once.
func withCommand(env []string, command string) []string {
	out := make([]string, 0, len(env)+1)
	for _, kv := range env {
		if !strings.HasPrefix(kv, "CNI_COMMAND=") {
			out = append(out, kv)
		}
	}
	return append(out, "CNI_COMMAND="+command)
}

// limited keeps at most max bytes: the first ones and then an error for the
// writer, or, rolling, the last ones.
type limited struct {
	bytes.Buffer
	max     int
	rolling bool
}

func (l *limited) Write(p []byte) (int, error) {
	if !l.rolling && l.Len()+len(p) > l.max {
		return 0, fmt.Errorf("more than %d bytes of output", l.max)
	}
	l.Buffer.Write(p)
	if over := l.Len() - l.max; over > 0 {
		l.Next(over)
	}
	return len(p), nil
}
