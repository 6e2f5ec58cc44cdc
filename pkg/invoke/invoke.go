// Package invoke finds and runs other CNI plugins, as the specification's
// section 4 has a plugin delegate to another.
package invoke

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/process"
)

const (
	// outputMax bounds what we keep of a delegate's output, in bytes.
	outputMax = 16 << 20
	// stderrMax bounds what an error quotes of a delegate's stderr, in bytes.
	stderrMax = 4 << 10
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
	var unknown error // what kept us from looking
	for _, dir := range filepath.SplitList(r.Path) {
		if dir == "" {
			continue
		}
		file := filepath.Join(dir, name)
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() {
			return file, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			unknown = err
		}
	}
	absent := fmt.Errorf("failed to find plugin %q in path %s", name, filepath.SplitList(r.Path)) // as the reference
	if unknown != nil {
		absent = fmt.Errorf("%w: %w", absent, unknown)
	}
	return "", cni.Errorf(cni.CodeEnvironment, "CNI_PATH: no plugin %q in %q: %w", name, r.Path, absent)
}

// Start starts the plugin called name for command with conf on its standard
// input, for a caller who has something else to do until it waits for the
// answer. Wait must follow, in the same goroutine. The plugin dies with us.
//
// The errors, also of Wait: the plugin's own error object comes back as a
// *cni.Error with its code; one that fails without such an object is code 999
// with its standard error in the details; one that runs out of time, or whose
// file is being written, is code 11; one that cannot be started code 5.
func (r Runner) Start(ctx context.Context, name, command string, conf []byte) (*Delegate, error) {
	file, err := r.Find(name)
	if err != nil {
		return nil, err
	}
	d := &Delegate{name: name, began: time.Now(), stderr: tail{copy: r.Stderr}}
	if ctx.Err() != nil {
		return nil, d.failure(ctx, context.Cause(ctx))
	}
	d.process, err = process.Command{
		Path: file, Env: withCommand(r.Env, command), Stdin: conf, Stdout: &d.stdout, Stderr: &d.stderr,
	}.Start()
	if err != nil {
		return nil, d.failure(ctx, err)
	}
	return d, nil
}

// Delegate is a plugin that was started.
type Delegate struct {
	name    string
	began   time.Time
	process *process.Process
	stdout  head
	stderr  tail
}

// Wait returns the plugin's standard output. The plugin is killed when ctx ends.
func (d *Delegate) Wait(ctx context.Context) ([]byte, error) {
	err := d.process.Wait(ctx)
	if err == nil {
		return d.stdout.buf, nil
	}
	return nil, d.failure(ctx, err)
}

// failure returns the error of a delegate that did not succeed.
func (d *Delegate) failure(ctx context.Context, err error) error {
	details := strings.TrimSpace(string(d.stderr.buf))
	if e, ok := cni.DecodeError(d.stdout.buf); ok {
		return e
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		took := time.Since(d.began).Round(time.Millisecond)
		return d.error(cni.CodeTryAgain, fmt.Sprintf("no answer within %s", took), details)
	case ctx.Err() != nil:
		return d.error(cni.CodeTryAgain, fmt.Sprintf("stopped: %v", context.Cause(ctx)), details)
	case errors.Is(err, syscall.ETXTBSY):
		return cni.Errorf(cni.CodeTryAgain, "plugin %q: its file is being written: %w", d.name, err)
	case !errors.As(err, new(*process.ExitError)):
		return cni.Errorf(cni.CodeIO, "plugin %q: %w", d.name, err)
	}
	if details == "" {
		details = fmt.Sprintf("it printed %.200q", bytes.TrimSpace(d.stdout.buf))
	}
	return d.error(cni.CodeInternal, fmt.Sprintf("failed without an error object: %v", err), details)
}

func (d *Delegate) error(code uint, msg, details string) error {
	return &cni.Error{Code: code, Msg: fmt.Sprintf("plugin %q: %s", d.name, msg), Details: details}
}

// withCommand is env with CNI_COMMAND set to command, once.
func withCommand(env []string, command string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, "CNI_COMMAND=") })
	return append(out, "CNI_COMMAND="+command)
}

// head keeps the first bytes, outputMax of them, and refuses more.
type head struct{ buf []byte }

func (h *head) Write(p []byte) (int, error) {
	if len(h.buf)+len(p) > outputMax {
		return 0, fmt.Errorf("more than %d bytes of output", outputMax)
	}
	h.buf = append(h.buf, p...)
	return len(p), nil
}

// tail copies what it gets and keeps the last bytes, stderrMax of them. That
// nobody takes the copies is no reason to fail, or a delegate would die of it.
type tail struct {
	copy io.Writer
	buf  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	if t.copy != nil {
		_, _ = t.copy.Write(p)
	}
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-stderrMax):]
	return len(p), nil
}
