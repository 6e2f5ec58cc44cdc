// Package ipam runs the IPAM plugin that a configuration names (specification, section 4), and says which of its
// answers can be used.
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
	stderrMax = 4 << 10  // bytes of its standard error that an error quotes
)

// Client speaks to the IPAM plugin that the configuration of a call names.
type Client struct {
	Req *skel.Request
	// OnlyRoutes permits an answer to ADD without addresses, for an interface that has its own.
	OnlyRoutes bool

	file   string                              // the plugin's, once it was found
	inside func(context.Context, skel.Env) int // serves a call in place of the file; nil = it is executed
}

// CheckType refuses, with code 7, an ipam.type that can be no plugin's name.
func CheckType(name string) error {
	if cni.ValidType(name) {
		return nil
	}
	return cni.Refuse("ipam.type", name, "is no plugin name (it must be a plain file name)").
		Suggest("name a program in CNI_PATH, host-local for example")
}

// Find looks for the plugin, once: the first regular file of its name in Path. A name
// that is no plain file name is code 7, a missing plugin code 4 naming CNI_PATH.
func (c *Client) Find() error {
	if c.file != "" {
		return nil
	}
	if err := CheckType(c.Req.IPAM); err != nil {
		return err
	}
	var failed error
	for _, dir := range filepath.SplitList(c.Req.Path) {
		file := filepath.Join(dir, c.Req.IPAM)
		info, err := os.Stat(file)
		switch {
		case dir == "": // is not the working directory
		case err == nil && info.Mode().IsRegular():
			if p, ok := c.Req.InProcess(info); ok {
				c.inside = p.Run
			}
			c.file = file
			return nil
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			failed = err
		}
	}
	// The reference plugins' words.
	absent := fmt.Errorf("failed to find plugin %q in path %s", c.Req.IPAM, filepath.SplitList(c.Req.Path))
	if failed != nil {
		absent = fmt.Errorf("%w: %w", absent, failed)
	}
	return cni.Errorf(cni.CodeEnvironment, "CNI_PATH: no plugin %q in %q: %w", c.Req.IPAM, c.Req.Path, absent)
}

// Start starts the plugin for command, with the configuration on its standard input, for a caller who does
// something else meanwhile. Wait, Result or Release must follow, in the same goroutine. A plugin that this process
// serves runs in Wait.
//
// The errors, also of Wait: the plugin's own error object with its code; code 999 with its standard error in
// the details for a failure without one; code 11 when the time is up or its file is being written; code 5 when
// it cannot be started.
func (c *Client) Start(ctx context.Context, command string) (*Delegate, error) {
	if err := c.Find(); err != nil {
		return nil, err
	}
	d := &Delegate{name: c.Req.IPAM, began: time.Now(), output: &output{stderr: lastBytes{copy: c.Req.Stderr}}}
	if ctx.Err() != nil {
		return nil, d.failure(ctx, context.Cause(ctx))
	}
	var env []string
	env, d.ended = c.Req.Delegate(c.Req.IPAM, command)
	if c.inside != nil {
		d.inside = func(ctx context.Context, out *output) int {
			return c.inside(ctx, skel.Env{Vars: env,
				Stdin: bytes.NewReader(c.Req.Conf), Stdout: &out.stdout, Stderr: &out.stderr})
		}
		return d, nil
	}
	var err error
	d.process, err = process.Command{
		Path: c.file, Env: env, Stdin: c.Req.Conf, Stdout: &d.stdout, Stderr: &d.stderr,
	}.Start()
	if err != nil {
		d.ended(err)
		return nil, d.failure(ctx, err)
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

// Result waits for the answer to an ADD: at least one address, and no interfaces.
// An answer that cannot be used is code 102.
//
// When the plugin says that the attachment has addresses already (code 100), Result gives
// them back and asks again: Podman starts a container again after a reboot or a crash
// without a DEL.
func (c *Client) Result(ctx context.Context, adding *Delegate) (*cni.Result, error) {
	out, err := adding.Wait(ctx)
	if refused := (*cni.Error)(nil); errors.As(err, &refused) && refused.Code == cni.CodeExists {
		if err := c.Run(ctx, "DEL"); err != nil {
			return nil, errors.Join(refused, err)
		}
		out, err = c.answer(ctx, "ADD")
	}
	if err != nil {
		return nil, err
	}
	return c.decode(out)
}

// Release gives the addresses back during a roll-back. adding is an ADD that may still run: it is ended first. nil is
// none.
func (c *Client) Release(ctx context.Context, adding *Delegate) error {
	if adding != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, _ = adding.Wait(ended)
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
	res.Interfaces = nil // an IPAM plugin knows nothing of interfaces (specification, section 5)
	for i, ip := range res.IPs {
		if slices.ContainsFunc(res.IPs[:i], func(o cni.IP) bool { return o.Address.Addr() == ip.Address.Addr() }) {
			return nil, cni.Errorf(cni.CodeIPAM, "%s: its answer has address %s twice", c, ip.Address.Addr())
		}
		res.IPs[i].Interface = nil
	}
	return res, nil
}

// NeedsInterface reports whether the plugin's DEL may need the container's interface, as
// dhcp's does to reach its server. Plugins that are known to keep a store do not.
func (c *Client) NeedsInterface() bool {
	stores := []string{"host-local", "cluster-local", "static", "whereabouts"}
	return !slices.ContainsFunc(stores, func(plugin string) bool { return cni.IsPlugin(c.Req.IPAM, plugin) })
}

// ClearsInterface reports whether the plugin takes the addresses from the interface itself before it releases them.
func (c *Client) ClearsInterface() bool { return cni.IsPlugin(c.Req.IPAM, "dhcp") }

// Status asks whether the plugin could serve an ADD. A missing plugin is code 50.
func (c *Client) Status(ctx context.Context) error {
	if err := CheckType(c.Req.IPAM); err != nil {
		return err
	}
	if err := c.Find(); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	return c.Run(ctx, "STATUS")
}

// String names the plugin for messages.
func (c *Client) String() string { return fmt.Sprintf("IPAM plugin %q", c.Req.IPAM) }

// Delegate is a call of a plugin: a process that was started, or a function that Wait runs.
type Delegate struct {
	name    string
	began   time.Time
	ended   func(error)                        // is told how it ended
	inside  func(context.Context, *output) int // nil = process
	process *process.Process
	*output
}

type output struct {
	stdout limited
	stderr lastBytes
}

// Wait returns the plugin's standard output. When ctx ends, the process is killed; the function is left behind, and
// what it prints is not used.
func (d *Delegate) Wait(ctx context.Context) (answer []byte, err error) {
	defer func() { d.ended(err) }()
	if err := d.end(ctx); err != nil {
		return nil, d.failure(ctx, err)
	}
	return d.stdout.buf, nil
}

func (d *Delegate) end(ctx context.Context) error {
	if d.inside == nil {
		return d.process.Wait(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ended, out := make(chan int, 1), d.output
	go func() { // it can be given up, and never runs on a thread that entered another namespace
		status := 2 // of a program that panics; most panics skel answers
		defer func() {
			if v := recover(); v != nil {
				fmt.Fprintf(&out.stderr, "panic: %v\n\n%s", v, debug.Stack())
			}
			ended <- status
		}()
		status = d.inside(ctx, out)
	}()
	select {
	case status := <-ended:
		if status == 0 {
			return nil
		}
		if ctx.Err() == nil {
			return fmt.Errorf("exit status %d", status)
		}
	case <-ctx.Done():
		// It may hang in a system call: it is left there. It gets no lock any more, so that a DEL that follows wins.
	}
	d.output = &output{} // as of a process that was killed
	return context.Cause(ctx)
}

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
	case d.inside == nil && !errors.As(err, new(*process.ExitError)):
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

// limited keeps outputMax bytes, and fails at more, and from then on.
type limited struct {
	buf    []byte
	isFull bool
}

func (l *limited) Write(p []byte) (int, error) {
	l.isFull = l.isFull || len(l.buf)+len(p) > outputMax
	if l.isFull {
		return 0, fmt.Errorf("more than %d bytes of output", outputMax)
	}
	l.buf = append(l.buf, p...)
	return len(p), nil
}

// lastBytes copies what it gets, and keeps stderrMax bytes. A failed copy is no error: it would end the delegate.
type lastBytes struct {
	copy io.Writer
	buf  []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	if l.copy != nil {
		_, _ = l.copy.Write(p)
	}
	l.buf = append(l.buf, p...)
	l.buf = l.buf[max(0, len(l.buf)-stderrMax):]
	return len(p), nil
}
