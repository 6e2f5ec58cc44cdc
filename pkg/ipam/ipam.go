// Package ipam runs the IPAM plugin that a configuration names (specification, section 4), and checks its answer.
//
// A Client finds the plugin in CNI_PATH and runs commands. A Delegate is one call of the plugin: it is started first
// and awaited later, so that the main plugin can work in the meantime.
//
// If the file in CNI_PATH is the running program itself, and the plugin permits it, a goroutine of this process serves
// the call (Request.InProcess), which saves the start of a process. The environment, the answer and the errors are the
// same. If the time of the call runs out, the goroutine is abandoned. It gets no lock afterwards, so that it cannot add
// a lease after a following DEL.
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
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	outputMax = 16 << 20 // bytes of a delegate's output
	stderrMax = 4 << 10  // bytes of a delegate's standard error that an error quotes
)

// Client calls the IPAM plugin that the configuration of a request names.
type Client struct {
	Req        *skel.Request
	OnlyRoutes bool // permits an answer to ADD without addresses, for an interface that has its own

	file  string                              // path of the plugin; set by FindPlugin
	serve func(context.Context, skel.Env) int // serves calls in this process; nil if file must be executed
}

// CheckType returns an error with code 7 if ipam.type cannot be the name of a plugin.
func CheckType(name string) error {
	if cni.ValidType(name) {
		return nil
	}
	return cni.Refuse("ipam.type", name, "is not a plugin name (it must be a plain file name)").
		Suggest("name a program in CNI_PATH, host-local for example")
}

// FindPlugin searches CNI_PATH for the plugin, the first regular file with its name. It does so only once. The error
// has code 7 if the name is not a plain file name, and code 4 if there is no such plugin.
func (c *Client) FindPlugin() error {
	if c.file != "" {
		return nil
	}
	if err := CheckType(c.Req.IPAM); err != nil {
		return err
	}
	var statErr error
	for _, dir := range filepath.SplitList(c.Req.Path) {
		file := filepath.Join(dir, c.Req.IPAM)
		info, err := os.Stat(file)
		switch {
		case dir == "": // an empty entry does not mean the working directory
		case err == nil && info.Mode().IsRegular():
			c.file, c.serve = file, c.Req.InProcess(info)
			return nil
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			statErr = err
		}
	}
	// Other programs search for this text of the reference plugins.
	cause := fmt.Errorf("failed to find plugin %q in path %s", c.Req.IPAM, filepath.SplitList(c.Req.Path))
	if statErr != nil {
		cause = fmt.Errorf("%w: %w", cause, statErr)
	}
	return cni.Errorf(cni.CodeEnvironment, "CNI_PATH: no plugin %q in %q: %w", c.Req.IPAM, c.Req.Path, cause)
}

// Start starts the plugin for command, with the configuration on its standard input, and returns. The caller must call
// Delegate.Wait, Result or Release in the same goroutine. A plugin that this process serves runs in Wait.
//
// Start and Wait return the plugin's own error object with its code. If the plugin fails without an error object, they
// return code 999 with its standard error as details. They return code 11 if the time is up or the plugin's file is
// being written, and code 5 if the file cannot be started.
func (c *Client) Start(ctx context.Context, command string) (*Delegate, error) {
	if err := c.FindPlugin(); err != nil {
		return nil, err
	}
	d := &Delegate{name: c.Req.IPAM, start: time.Now(), output: &output{stderr: tailBuffer{copy: c.Req.Stderr}}}
	if ctx.Err() != nil {
		return nil, d.callError(ctx, context.Cause(ctx))
	}
	var env []string
	env, d.onEnd = c.Req.Delegate(c.Req.IPAM, command)
	if c.serve != nil {
		d.serve = func(ctx context.Context, out *output) int {
			return c.serve(ctx, skel.Env{Vars: env,
				Stdin: bytes.NewReader(c.Req.Conf), Stdout: &out.stdout, Stderr: &out.stderr})
		}
		return d, nil
	}
	var err error
	d.process, err = process.Command{
		Path: c.file, Env: env, Stdin: c.Req.Conf, Stdout: &d.stdout, Stderr: &d.stderr,
	}.Start()
	if err != nil {
		d.onEnd(err)
		return nil, d.callError(ctx, err)
	}
	return d, nil
}

// Run runs a command without a result: CHECK, DEL, GC or STATUS.
func (c *Client) Run(ctx context.Context, command string) error {
	_, err := c.answer(ctx, command)
	return err
}

func (c *Client) answer(ctx context.Context, command string) ([]byte, error) {
	d, err := c.Start(ctx, command)
	if err != nil {
		return nil, err
	}
	return d.Wait(ctx)
}

// Result waits for the answer to d, an ADD. The answer must have an address; its interfaces are dropped. The error for
// an invalid answer has code 102.
//
// If the plugin answers that the attachment already has addresses (code 100), Result releases them and repeats the ADD,
// because Podman restarts a container without a DEL after a reboot or a crash.
func (c *Client) Result(ctx context.Context, d *Delegate) (*cni.Result, error) {
	out, err := d.Wait(ctx)
	if exists, ok := errors.AsType[*cni.Error](err); ok && exists.Code == cni.CodeExists {
		if err := c.Run(ctx, "DEL"); err != nil {
			return nil, errors.Join(exists, err)
		}
		out, err = c.answer(ctx, "ADD")
	}
	if err != nil {
		return nil, err
	}
	return c.decode(out)
}

// Release releases the addresses during a roll-back. It first ends d, an ADD that may still run, unless d is nil.
func (c *Client) Release(ctx context.Context, d *Delegate) error {
	if d != nil {
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		_, _ = d.Wait(canceled)
	}
	return c.Run(ctx, "DEL")
}

func (c *Client) decode(answer []byte) (*cni.Result, error) {
	res, err := cni.DecodeResult(answer, c.Req.Version)
	if err != nil {
		return nil, cni.Errorf(cni.CodeIPAM, "%s: its answer cannot be read: %w", c, err)
	}
	if len(res.IPs) == 0 && !c.OnlyRoutes {
		return nil, cni.Errorf(cni.CodeIPAM, "%s: its answer has no addresses", c)
	}
	res.Interfaces = nil // an IPAM plugin must not return interfaces (specification, section 5)
	for i, ip := range res.IPs {
		if slices.ContainsFunc(res.IPs[:i], func(o cni.IP) bool { return o.Address.Addr() == ip.Address.Addr() }) {
			return nil, cni.Errorf(cni.CodeIPAM, "%s: its answer has address %s twice", c, ip.Address.Addr())
		}
		res.IPs[i].Interface = nil
	}
	return res, nil
}

// NeedsInterface reports whether the plugin's DEL may need the container's interface, as the DEL of dhcp does to reach
// the server. It is false only for plugins that are known to keep their leases in a store.
func (c *Client) NeedsInterface() bool {
	stores := []string{"host-local", "cluster-local", "static", "whereabouts"}
	return !slices.ContainsFunc(stores, func(plugin string) bool { return cni.IsPlugin(c.Req.IPAM, plugin) })
}

// ClearsInterface reports whether the plugin itself removes the addresses from the interface before it releases them.
func (c *Client) ClearsInterface() bool { return cni.IsPlugin(c.Req.IPAM, "dhcp") }

// Status returns nil if the plugin is ready for an ADD. The error for a missing plugin has code 50.
func (c *Client) Status(ctx context.Context) error {
	if err := CheckType(c.Req.IPAM); err != nil {
		return err
	}
	if err := c.FindPlugin(); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	return c.Run(ctx, "STATUS")
}

// String returns a description of the plugin for messages.
func (c *Client) String() string { return fmt.Sprintf("IPAM plugin %q", c.Req.IPAM) }

// Delegate is a call of a plugin: a started process, or a function that Wait runs.
type Delegate struct {
	name    string
	start   time.Time
	onEnd   func(error)                        // called at the end, with the call's error or nil
	serve   func(context.Context, *output) int // nil if the plugin is a process
	process *process.Process
	*output
}

type output struct {
	stdout limitedBuffer
	stderr tailBuffer
}

// Wait waits for the end of the call and returns the plugin's standard output. When ctx ends, a process is killed. A
// function is abandoned, and its output is discarded.
func (d *Delegate) Wait(ctx context.Context) (answer []byte, err error) {
	defer func() { d.onEnd(err) }()
	if err := d.await(ctx); err != nil {
		return nil, d.callError(ctx, err)
	}
	return d.stdout.buf, nil
}

// await waits for the end of the call, and returns nil if it succeeded.
func (d *Delegate) await(ctx context.Context) error {
	if d.serve == nil {
		return d.process.Wait(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	exit, out := make(chan int, 1), d.output
	go func() { // can be abandoned, and never runs on a thread that has entered another namespace
		status := 2 // exit status of a program that panics; skel itself handles most panics
		defer func() {
			if v := recover(); v != nil {
				fmt.Fprintf(&out.stderr, "panic: %v\n\n%s", v, debug.Stack())
			}
			exit <- status
		}()
		status = d.serve(ctx, out)
	}()
	select {
	case status := <-exit:
		if status == 0 {
			return nil
		}
		if ctx.Err() == nil {
			return fmt.Errorf("exit status %d", status)
		}
	case <-ctx.Done(): // the goroutine may hang in a system call
	}
	d.output = &output{} // the goroutine may still write to the former one
	return context.Cause(ctx)
}

// callError returns the error of a call that ended with err. Start lists the codes.
func (d *Delegate) callError(ctx context.Context, err error) error {
	if e, ok := cni.DecodeError(d.stdout.buf); ok {
		return e
	}
	details := strings.TrimSpace(string(d.stderr.buf))
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		duration := time.Since(d.start).Round(time.Millisecond)
		return d.error(cni.CodeTryAgain, fmt.Sprintf("no answer within %s", duration), details)
	case ctx.Err() != nil:
		return d.error(cni.CodeTryAgain, fmt.Sprintf("stopped: %v", context.Cause(ctx)), details)
	case errors.Is(err, syscall.ETXTBSY):
		return cni.Errorf(cni.CodeTryAgain, "plugin %q: its file is being written: %w", d.name, err)
	case d.serve == nil && !errors.As(err, new(*process.ExitError)):
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

// limitedBuffer keeps up to outputMax bytes. The first write beyond the limit fails, and so do all later writes.
type limitedBuffer struct {
	buf    []byte
	isFull bool
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	l.isFull = l.isFull || len(l.buf)+len(p) > outputMax
	if l.isFull {
		return 0, fmt.Errorf("more than %d bytes of output", outputMax)
	}
	l.buf = append(l.buf, p...)
	return len(p), nil
}

// tailBuffer copies its input and keeps the last stderrMax bytes. It ignores errors of the copy, because they would end
// the delegate.
type tailBuffer struct {
	copy io.Writer
	buf  []byte
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	if t.copy != nil {
		_, _ = t.copy.Write(p)
	}
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-stderrMax):]
	return len(p), nil
}
