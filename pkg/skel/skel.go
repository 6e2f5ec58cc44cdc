// Package skel runs plugins: it decodes a call, runs the plugin's handler, rolls back a failed ADD and prints one
// answer (specification, sections 2 and 5). Only skel and the tool use the environment, the standard streams and the
// exit status of the process.
//
// A plugin is a Plugin[C]: a name, a configuration and handlers. C is the type that the plugin's Parse returns, so the
// handlers of a plugin get its own type. Run serves one call in an Env, which stands for the process; specs pass their
// own. The handlers get a Request. ADD registers the undo of each effect before the effect (OnFail), because a failed
// operation may still have had its effect. After an error, a panic, a signal or a failed write of the result, the undos
// run in reverse order. DEL and GC never parse the configuration with Parse, because they must work with one that ADD
// refuses.
//
// All plugins are in one program. Code that is generic in C would be compiled for each plugin, so Run first converts a
// Plugin[C] to a Plugin[any] (Untyped). A Program is an entry of the list of plugins, and builds its plugin only when a
// method is called, because building all plugins takes time at each start of the process.
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

// Stamp precedes the version in a program's file, and a semicolon follows the version. An installer can find the
// version without running the program.
const Stamp = "hawser-cni version "

// Reference is the release of the reference plugins whose behavior Hawser matches. No other file names that release:
// specs import this constant, and scripts/reference.sh reads this line.
const Reference = "v1.10.0"

// stamp is Stamp, the version and a semicolon. The build of a release sets it, as scripts/build.sh does:
// -ldflags "-X 'github.com/hawser-cni/plugins/pkg/skel.stamp=hawser-cni version 1.2.3;'".
var stamp = Stamp + "unknown;"

// Version returns the version of the running program.
func Version() string { return strings.TrimSuffix(strings.TrimPrefix(stamp, Stamp), ";") }

// Plugin is a plugin's name, configuration and handlers. C is the type that Parse returns. A nil handler succeeds.
// Handlers do not print.
type Plugin[C any] struct {
	Name  string
	About string // description in one line
	Config[C]
	IPAM bool // set for an IPAM plugin. For it, CNI_NETNS is not opened, and can be any text
	// InProcess is set for an IPAM plugin that does not need its own process. If it is part of the running program, the
	// plugin that delegates to it runs it in-process.
	InProcess bool
	Chained   bool // set for a plugin that needs the result of a previous plugin in ADD and CHECK

	// Commands are functions for users and services, by the program's first argument. They return the exit status.
	Commands map[string]func(Env) int

	Add    func(context.Context, *Request, C) (*cni.Result, error)
	Del    func(context.Context, *Request) error
	Check  func(context.Context, *Request, C) error
	GC     func(context.Context, *Request) error
	Status func(context.Context, *Request, C) error

	// Reapply restores what CHECK finds missing and a second ADD could not create. It changes no interface.
	Reapply func(context.Context, *Request, C) error

	// Restore restores nftables objects of many live attachments in one batch, for example after a flush. It returns a
	// map from marks to what was missing. CHECK finds what Restore cannot restore, and Reapply handles it.
	Restore func(context.Context, []*Request) map[string]error

	// List returns what the plugin keeps for attachments, on the host and in namespaces whose paths it knows. If the
	// request has a network and its configuration, List returns what belongs to it. Otherwise it reads all places that
	// do not depend on a configuration. (Only the key dataDir, also in ipam, chooses a place.) List takes no lock and
	// changes nothing. With an error it also returns what it could read.
	List func(context.Context, *Request) ([]cni.Holding, error)
}

// Config is a plugin's configuration.
type Config[C any] struct {
	// Keys is a value of the struct into which Parse decodes the configuration. Its tags provide the text of --help and
	// the hints about misspelled keys.
	Keys any

	// Parse parses the configuration, and returns all problems at once. It uses only the request. Parse is not called
	// for DEL and GC, which must work with a configuration that ADD refuses, and decode themselves what they need.
	Parse func(*Request) (C, error)
}

// Env is the environment of a call. It stands for the process that a plugin runs in.
type Env struct {
	Called string   // base name of argv[0]
	Args   []string // the command line, without the program's name
	Vars   []string // KEY=value
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	// Notify makes the signals that end a process call stop instead. Request.SignalsEndContext calls it. Before, while
	// there is nothing to undo, a signal simply ends the process.
	Notify   func(stop func(cause error))
	Failures string        // directory for records of failed calls; empty means that none are written
	Policy   string        // path of the administrator's policy for tenants (package policy); empty means no policy
	Limit    time.Duration // time limit of the call; 0 means callTime. Only specs set it
	Reapply  bool          // makes CHECK call the Reapply handler. Only the tool sets it
	// ReadOnly makes CHECK change nothing at all: the IPAM plugin is not called, because it locks its files, and no
	// line is added to the log. Only the tool sets it.
	ReadOnly bool
	Programs []Program // all plugins of the running program
}

// callTime is the time limit of a call. A roll-back has 20 seconds more (two ninths). Together this is less than two
// minutes, after which a kubelet stops waiting.
const callTime = 90 * time.Second

// withoutSIGPIPE returns a duplicate of a standard stream. If the reader of a pipe has closed it, a write to descriptor
// 1 or 2 ends a Go process with SIGPIPE. A write to another descriptor returns an error, and ADD is rolled back.
func withoutSIGPIPE(f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return f
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// Untyped converts the plugin to one whose configuration has any type, so that all plugins share the code below.
func (p Plugin[C]) Untyped() Plugin[any] {
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
	cfg, _ = c.(C) // without Parse, c is nil, and cfg the zero value
	return cfg
}

// Run serves one call in env and returns the exit status.
func Run[C any](ctx context.Context, p Plugin[C], env Env) int { return run(ctx, p.Untyped(), env) }

func run(ctx context.Context, p Plugin[any], env Env) int {
	vars := environ(env.Vars)
	if done, code := serveCommandLine(p, env, vars); done {
		return code
	}
	c := &call{plugin: p, env: env, vars: vars, began: time.Now()}
	err := recoverPanic(func() error {
		if vars["CNI_COMMAND"] == "VERSION" {
			return c.answerVersion()
		}
		return c.serve(ctx)
	})
	code := 0
	if err != nil {
		code = c.fail(err)
		c.recordFailure(err)
	}
	c.log(err)
	return code
}

type call struct {
	plugin  Plugin[any]
	env     Env
	vars    map[string]string
	version string // version of the configuration; empty until it has been validated
	req     *Request
	cfg     any // the configuration that Parse returned

	isValidUnknown bool        // GC does not know which attachments are valid
	result         *cni.Result // the printed result
	isPartial      bool        // only a part of a document has been printed, so no other one may follow
	began          time.Time
	logName        string // value of the key log
	trace          *trace
}

func (c *call) serve(ctx context.Context) error {
	command := c.vars["CNI_COMMAND"]
	if err := c.checkEnvironment(command); err != nil {
		if asked := c.askedVersion(); cni.Supports(asked) {
			c.version = asked // for the error object
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
			"This plugin must be called as chained plugin: %s works on the interface of another plugin", p.Name)
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
	case command == "GC" && c.isValidUnknown: // cnitool sends no list
		req.Warn("cni.dev/valid-attachments: missing; nothing is removed")
	case command == "GC" && p.GC != nil:
		return c.handle(ctx, func(ctx context.Context) error { return p.GC(ctx, req) })
	}
	return nil
}

func (c *call) handle(ctx context.Context, handler func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.env.Limit, callTime))
	defer cancel()
	return stopped(ctx, recoverPanic(func() error { return handler(ctx) }))
}

// add runs the ADD handler and prints its result. After a failure, also a panic or a failed write, it rolls back.
func (c *call) add(ctx context.Context) error {
	for _, u := range unknownKeys(c.plugin, c.req.Conf, "") {
		switch {
		case u.isCaseOf:
			c.req.Warn("key %q is accepted in spite of its case: did you mean %q?", u.key, u.similar)
		case u.similar != "":
			c.req.Warn("key %q is unknown and ignored: did you mean %q?", u.key, u.similar)
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// An IPAM plugin needs no roll-back, because the calling plugin releases its leases.
	if c.env.Notify != nil && !c.plugin.IPAM {
		c.req.notify = func() { c.env.Notify(stop) }
	}
	limit := cmp.Or(c.env.Limit, callTime)
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := recoverPanic(func() error {
		res, err := c.plugin.Add(timed, c.req, c.cfg)
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx) // the sender of the signal does not wait for the result
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

// stopped returns err with code 11 if a signal or the deadline has ended ctx and err has no code.
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

// WithTwoThirds returns a context with two thirds of ctx's remaining time, so that a step that waits for a lock leaves
// time for other steps.
func WithTwoThirds(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(deadline)*2/3)
}

// notify is Env.Notify of a real process. Signals that the caller ignores (for example nohup) remain ignored.
func notify(stop func(cause error)) {
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	go func() { stop(fmt.Errorf("%s signal received", <-signals)) }()
}
