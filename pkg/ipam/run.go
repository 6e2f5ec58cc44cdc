package ipam

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

// Find looks for the plugin, once: the first regular file of its name in Path. A name
// that is no plain file name is code 7, a plugin that is not there code 4 naming CNI_PATH.
func (c *Client) Find() error {
	if c.file != "" {
		return nil
	}
	if err := CheckType(c.Type); err != nil {
		return err
	}
	var unknown error // kept us from looking
	for _, dir := range filepath.SplitList(c.Path) {
		if dir == "" {
			continue
		}
		file := filepath.Join(dir, c.Type)
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() {
			c.file = file
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			unknown = err
		}
	}
	absent := fmt.Errorf("failed to find plugin %q in path %s", c.Type, filepath.SplitList(c.Path)) // as the reference
	if unknown != nil {
		absent = fmt.Errorf("%w: %w", absent, unknown)
	}
	return cni.Errorf(cni.CodeEnvironment, "CNI_PATH: no plugin %q in %q: %w", c.Type, c.Path, absent)
}

// Start starts the plugin for command, with the configuration on its standard input, for a caller who has
// something else to do until it needs the answer. Wait, Result or Release follows, in the same goroutine. The
// plugin dies with us. One that was started for an ADD may have reserved something.
//
// The errors, also of Wait: the plugin's own error object comes back as a
// *cni.Error with its code; one that fails without such an object is code 999
// with its standard error in the details; one that runs out of time, or whose
// file is being written, is code 11; one that cannot be started code 5.
func (c *Client) Start(ctx context.Context, command string) (*Delegate, error) {
	if err := c.Find(); err != nil {
		return nil, err
	}
	d := &Delegate{name: c.Type, began: time.Now(), stderr: tail{copy: c.Stderr}}
	if ctx.Err() != nil {
		return nil, d.failure(ctx, context.Cause(ctx))
	}
	env := slices.DeleteFunc(slices.Clone(c.Env), func(kv string) bool { return strings.HasPrefix(kv, "CNI_COMMAND=") })
	var err error
	d.process, err = process.Command{
		Path: c.file, Env: append(env, "CNI_COMMAND="+command), Stdin: c.Conf, Stdout: &d.stdout, Stderr: &d.stderr,
	}.Start()
	if err != nil {
		return nil, d.failure(ctx, err)
	}
	return d, nil
}

// Run runs a command that has no answer: CHECK, DEL, GC or STATUS.
func (c *Client) Run(ctx context.Context, command string) error {
	_, err := c.answer(ctx, command)
	return err
}

// answer runs a command to its end, and returns the plugin's standard output.
func (c *Client) answer(ctx context.Context, command string) ([]byte, error) {
	d, err := c.Start(ctx, command)
	if err != nil {
		return nil, err
	}
	return d.Wait(ctx)
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
	if err := d.process.Wait(ctx); err != nil {
		return nil, d.failure(ctx, err)
	}
	return d.stdout.buf, nil
}

// failure returns the error of a delegate that did not succeed.
func (d *Delegate) failure(ctx context.Context, err error) error {
	if e, ok := cni.DecodeError(d.stdout.buf); ok {
		return e
	}
	details := strings.TrimSpace(string(d.stderr.buf))
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
