// Package skel is the shell of every plugin. It alone touches the process's
// environment, standard streams and exit status (but for the tool's). It decodes a call, runs the plugin's
// handler, rolls a failed ADD back and prints one answer (specification, sections 2, 5).
package skel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Stamp precedes the version in a program's file, and a semicolon ends the version. An installer finds both without
// running the program.
const Stamp = "hawser-cni version "

// Reference is the release of the reference plugins whose behavior Hawser matches. No other file names that release:
// specs import this constant, and scripts/reference.sh reads this line.
const Reference = "v1.10.0"

// stamp is Stamp, the version and a semicolon. Who builds a release sets all of it, as scripts/build.sh does:
// -ldflags "-X 'github.com/hawser-cni/plugins/pkg/skel.stamp=hawser-cni version 1.2.3;'".
var stamp = Stamp + "unknown;"

// Version is the version of the running program.
func Version() string { return strings.TrimSuffix(strings.TrimPrefix(stamp, Stamp), ";") }

// Plugin is a plugin's name, configuration and handlers. C is the type into which
// Parse turns the configuration. A handler that is nil succeeds; none of them prints.
type Plugin[C any] struct {
	Name  string
	About string // one line for people
	Config[C]

	// IPAM plugins are given CNI_NETNS, which is not opened for them: it may be anything.
	IPAM bool
	// InProcess is set for an IPAM plugin that needs no process of its own: the plugin that delegates to it may run it
	// itself, when both are the running program.
	InProcess bool

	// Chained plugins need the result of a plugin before them in ADD and CHECK.
	Chained bool

	// Commands serve people or services, by the program's first argument. Each
	// returns the exit status.
	Commands map[string]func(Env) int

	Add    func(context.Context, *Request, C) (*cni.Result, error)
	Del    func(context.Context, *Request) error
	Check  func(context.Context, *Request, C) error
	GC     func(context.Context, *Request) error
	Status func(context.Context, *Request, C) error

	// Reapply makes again what CHECK finds missing of a live attachment, of what ADD cannot make twice. It touches no
	// interface.
	Reapply func(context.Context, *Request, C) error

	// Restore makes again, for many live attachments in one batch, what a flush of nftables took of what ADD made. It
	// returns what was missing, by the mark. What it cannot make is found by CHECK, and left to Reapply.
	Restore func(context.Context, []*Request) map[string]error

	// List returns what the plugin keeps for attachments, on the host and in namespaces whose paths it knows. It is
	// told a network and its configuration, or neither: then it looks at the places that no configuration chooses. The
	// key dataDir alone, also in ipam, chooses one. It takes no lock and changes nothing. What it could read comes
	// beside an error.
	List func(context.Context, *Request) ([]cni.Holding, error)
}

// Config is a plugin's configuration.
type Config[C any] struct {
	// Keys is a value of the struct that Parse decodes the configuration into.
	// --help and the hints about misspelled keys are made of its tags.
	Keys any

	// Parse reads and checks the configuration, and returns all that it refuses.
	// It looks at nothing but the request. DEL and GC work with a configuration
	// that ADD refuses: Parse does not run, and they read what they need themselves.
	Parse func(*Request) (C, error)
}

// Env is the process that a plugin runs in. Tests pass their own.
type Env struct {
	Called string   // base name of argv[0]
	Args   []string // the command line, without the program's name
	Vars   []string // KEY=value
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	// Notify asks for the signals that tell a process to end: from then on they call stop, and no longer end it.
	// Request.SignalsEndContext calls it: while there is nothing to undo, a signal just ends the process.
	Notify func(stop func(cause error))

	// Failures is the directory of the records of calls that failed; empty = none.
	Failures string
	// Policy is the path of the administrator's policy for tenants (package policy); empty: no policy.
	Policy string
	// Limit is how long the call may take; 0 = callTime.
	Limit time.Duration
	// Reapply has CHECK make again what is missing; only the tool sets it.
	Reapply bool
	// Look has CHECK change nothing at all: no IPAM plugin is asked, since it locks its files, and there is no line for
	// the log. Only the tool sets it.
	Look bool
	// Programs are all plugins of the running program.
	Programs []Program
}

// callTime is how long a call may take. A roll-back may take 20 seconds more (two ninths): together less than the two
// minutes after which a kubelet gives up on us.
const callTime = 90 * time.Second

// withoutSIGPIPE returns a stream under another number. Go ends a process that writes to 1 or 2 when nobody reads them;
// for any other number the write returns an error, and ADD is rolled back.
func withoutSIGPIPE(f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return f
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// untyped returns the plugin with a configuration of any type: all plugins of a program share the code below.
func (p Plugin[C]) untyped() Plugin[any] {
	u := Plugin[any]{
		Name: p.Name, About: p.About, IPAM: p.IPAM, InProcess: p.InProcess, Chained: p.Chained, Commands: p.Commands,
		Config: Config[any]{Keys: p.Keys}, Del: p.Del, GC: p.GC, List: p.List, Restore: p.Restore,
		Check: untyped(p.Check), Reapply: untyped(p.Reapply), Status: untyped(p.Status),
	}
	if p.Parse != nil {
		u.Parse = func(r *Request) (any, error) { return p.Parse(r) }
	}
	if p.Add != nil {
		u.Add = func(ctx context.Context, r *Request, c any) (*cni.Result, error) { return p.Add(ctx, r, typed[C](c)) }
	}
	return u
}

func untyped[C any](handler func(context.Context, *Request, C) error) func(context.Context, *Request, any) error {
	if handler == nil {
		return nil
	}
	return func(ctx context.Context, r *Request, c any) error { return handler(ctx, r, typed[C](c)) }
}

func typed[C any](c any) (cfg C) {
	cfg, _ = c.(C) // nil, where there is no Parse, is the zero value
	return cfg
}

// Run serves one call in env and returns the exit status.
func Run[C any](ctx context.Context, p Plugin[C], env Env) int { return run(ctx, p.untyped(), env) }

func run(ctx context.Context, p Plugin[any], env Env) int {
	vars := environ(env.Vars)
	if done, code := forPeople(p, env, vars); done {
		return code
	}
	c := &call{plugin: p, env: env, vars: vars, began: time.Now()}
	err := catch(func() error {
		if vars["CNI_COMMAND"] == "VERSION" {
			return c.answerVersion()
		}
		return c.serve(ctx)
	})
	code := 0
	if err != nil {
		code = c.fail(err)
		c.remember(err)
	}
	c.log(err)
	return code
}

type call struct {
	plugin  Plugin[any]
	env     Env
	vars    map[string]string
	version string // of the configuration; empty until it is known to be one
	req     *Request
	cfg     any // what the plugin made of its configuration

	noValid bool        // GC was not told which attachments are valid
	result  *cni.Result // that was printed
	isCut   bool        // a part of a document: no second one may follow it
	began   time.Time
	logName string // the key log
	trace   *trace
}

func (c *call) serve(ctx context.Context) error {
	command := c.vars["CNI_COMMAND"]
	if err := c.checkEnvironment(command); err != nil {
		if asked := c.askedVersion(); cni.Supports(asked) {
			c.version = asked // the error names it
		}
		return err
	}
	req, err := c.decode(command)
	c.req = req
	c.tracing().decoded(err)
	if err != nil {
		return err
	}
	req.trace = c.trace
	defer req.close()
	if err := c.openNetns(command); err != nil {
		return err
	}
	p := c.plugin
	if p.Chained && req.PrevResult == nil && slices.Contains([]string{"ADD", "CHECK"}, command) {
		return cni.Errorf(cni.CodeConfig, "prevResult: missing prevResult from earlier plugin. "+
			"This plugin must be called as chained plugin: %s works on what another one made", p.Name)
	}
	switch {
	case command == "ADD":
		return c.add(ctx)
	case command == "DEL" && p.Del != nil:
		return c.handle(ctx, func(ctx context.Context) error { return p.Del(ctx, req) })
	case command == "CHECK" && c.env.Reapply && p.Reapply != nil:
		return c.handle(ctx, func(ctx context.Context) error { return p.Reapply(ctx, req, c.cfg) })
	case command == "CHECK" && p.Check != nil:
		return c.handle(ctx, func(ctx context.Context) error { return p.Check(ctx, req, c.cfg) })
	case command == "STATUS" && p.Status != nil:
		return c.handle(ctx, func(ctx context.Context) error { return p.Status(ctx, req, c.cfg) })
	case command == "GC" && c.noValid: // cnitool calls so
		req.Warn("cni.dev/valid-attachments: missing; nothing is removed")
	case command == "GC" && p.GC != nil:
		return c.handle(ctx, func(ctx context.Context) error { return p.GC(ctx, req) })
	}
	return nil
}

func (c *call) handle(ctx context.Context, handler func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.env.Limit, callTime))
	defer cancel()
	return stopped(ctx, catch(func() error { return handler(ctx) }))
}

// add runs the ADD handler and prints its result. After any failure, also a panic or
// a result that cannot be written, it undoes what the handler did.
func (c *call) add(ctx context.Context) error {
	for _, u := range unknownKeys(c.plugin, c.req.Conf, "") {
		switch {
		case u.read:
			c.req.Warn("key %q: did you mean %q? It is read as that", u.key, u.meant)
		case u.meant != "":
			c.req.Warn("key %q is unknown and ignored: did you mean %q?", u.key, u.meant)
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// The plugin that called an IPAM plugin gives its leases back.
	if c.env.Notify != nil && !c.plugin.IPAM {
		c.req.notify = func() { c.env.Notify(stop) }
	}
	limit := cmp.Or(c.env.Limit, callTime)
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := catch(func() error {
		res, err := c.plugin.Add(timed, c.req, c.cfg)
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx) // whoever sent the signal does not wait for the result
		}
		if err != nil {
			return err
		}
		return c.printResult(res)
	})
	c.trace.endStep(err)
	if err == nil {
		return nil
	}
	return c.req.rollBack(context.WithoutCancel(ctx), limit*2/9, stopped(timed, err))
}

// stopped makes code 11 of the error of a call that a signal or its deadline ended, unless it has a code of its own.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() == nil || err == nil || errors.As(err, new(*cni.Error)) {
		return err
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, context.DeadlineExceeded):
		return cni.Errorf(cni.CodeTryAgain, "no time left: %w", err)
	case errors.Is(err, cause):
		return cni.Errorf(cni.CodeTryAgain, "stopped: %w", err)
	}
	return cni.Errorf(cni.CodeTryAgain, "stopped: %w: %w", cause, err)
}

func environ(vars []string) map[string]string {
	m := make(map[string]string, len(vars))
	for _, kv := range vars {
		if key, value, ok := strings.Cut(kv, "="); ok {
			m[key] = value
		}
	}
	return m
}

// WithTwoThirds returns a context with two thirds of ctx's time: steps that wait for locks leave the rest to others.
func WithTwoThirds(ctx context.Context) (context.Context, context.CancelFunc) {
	at, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(at)*2/3)
}

// notify is Env.Notify of a real process. What our caller (nohup, say) ignores stays ignored.
func notify(stop func(cause error)) {
	told := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			signal.Notify(told, sig)
		}
	}
	go func() { stop(fmt.Errorf("%s signal received", <-told)) }()
}
