// Package skel runs plugins: it decodes a call, runs the plugin's handler, rolls back a failed ADD and prints one
// answer (specification, sections 2 and 5). Only skel and the tool use the environment, the standard streams and the
// exit status of the process.
//
// A plugin is a Plugin[C]: a name, a configuration and handlers. C is the type that the plugin's Parse returns. Run
// serves one call in an Env, which represents the process; specs pass an Env of their own. The handlers get a Request,
// with which ADD registers undos (OnFail). After an error, a panic, a signal or a failed write of the result, the undos
// run in reverse order.
//
// The program hawser has most plugins, as a list of Programs. Code that is generic in C would be compiled for each
// plugin, so Run first converts a Plugin[C] to a Plugin[any] (Untyped).
package skel

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

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

// Plugin is a plugin's name, configuration and handlers. Handlers do not print. Add is required. A nil handler
// succeeds, except that Check replaces a nil Reapply.
type Plugin[C any] struct {
	Name  string
	About string // description in one line
	Config[C]
	IPAM bool // set for an IPAM plugin, for which skel does not open CNI_NETNS
	// InProcess is set for an IPAM plugin that does not need its own process. If it is part of the running program, the
	// plugin that delegates to it runs it in-process.
	InProcess bool
	Chained   bool // set for a plugin that needs the result of a previous plugin in ADD and CHECK

	// Commands has a function for each first argument of the command line that the plugin itself handles, such as
	// dhcp's daemon. The function returns the exit status.
	Commands map[string]func(Env) int

	Add    func(context.Context, *Request, C) (*cni.Result, error)
	Del    func(context.Context, *Request) error
	Check  func(context.Context, *Request, C) error
	GC     func(context.Context, *Request) error
	Status func(context.Context, *Request, C) error

	// Reapply restores lost objects of a live attachment, for which a second ADD would fail. It changes no interface.
	Reapply func(context.Context, *Request, C) error

	// Restore restores nftables objects of many live attachments in one batch, for example after a flush. It returns a
	// map from marks to what was missing. CHECK finds what Restore cannot restore, and Reapply handles it.
	Restore func(context.Context, []*Request) map[string]error

	// List returns holdings on the host and in namespaces whose paths the plugin knows. If the request has a network,
	// List may omit holdings of others. It reads the plugin's default directory, or the directory in the key dataDir or
	// ipam.dataDir; no other key may select a directory. List takes no lock and changes nothing. After an error, it
	// returns the holdings that it could read.
	List func(context.Context, *Request) ([]cni.Holding, error)
}

// Config is a plugin's configuration.
type Config[C any] struct {
	// Keys is a value of the struct into which Parse decodes the configuration. Its tags provide the text of --help and
	// the hints about misspelled keys.
	Keys any

	// Parse returns the configuration, or an error with all problems. It uses only the request. Parse is not called for
	// DEL and GC, which must work with a configuration that ADD refuses, and decode themselves what they need.
	Parse func(*Request) (C, error)
}

// Env is the environment of a call. It represents the process in which a plugin runs.
type Env struct {
	Called string   // base name of argv[0]
	Args   []string // the command line, without the program's name
	Vars   []string // KEY=value
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	// Notify installs stop as the handler of SIGTERM, SIGINT and SIGHUP. Request.CatchSignals calls it. Until then,
	// while there is nothing to undo, these signals end the process.
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

// callTime is the time limit of a call. The roll-back has another two ninths, 20 seconds. Together this is less than
// two minutes, after which a kubelet gives up.
const callTime = 90 * time.Second

// Run serves one call in env and returns the exit status.
func Run[C any](ctx context.Context, p Plugin[C], env Env) int { return run(ctx, p.Untyped(), env) }

// Untyped returns the plugin without the type of its configuration, so that all plugins share the code below.
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

func run(ctx context.Context, p Plugin[any], env Env) int {
	vars := environ(env.Vars)
	if done, code := serveCommandLine(p, env, vars); done {
		return code
	}
	c := &call{plugin: p, env: env, vars: vars, start: time.Now()}
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
	version string // cniVersion of the configuration; empty until it has been validated
	req     *Request
	cfg     any // the configuration that Parse returned

	lacksValidList bool        // the configuration of GC has no list of valid attachments
	result         *cni.Result // the printed result
	isPartial      bool        // part of a document was printed, so no other document may follow
	start          time.Time
	logName        string // value of the key log
	trace          *trace
}

func (c *call) serve(ctx context.Context) error {
	command := c.vars["CNI_COMMAND"]
	if err := c.checkEnvironment(command); err != nil {
		if version := c.readVersion(); cni.Supports(version) {
			c.version = version // for the error object
		}
		return err
	}
	req, err := c.decode(command)
	c.req = req
	c.startTrace().addDecodeSpan(err)
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
	case command == "GC" && c.lacksValidList: // cnitool sends none
		req.Warn("cni.dev/valid-attachments: missing; nothing is removed")
	case command == "GC" && p.GC != nil:
		return c.handle(ctx, func(ctx context.Context) error { return p.GC(ctx, req) })
	}
	return nil
}

func (c *call) handle(ctx context.Context, handler func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.env.Limit, callTime))
	defer cancel()
	return interruptError(ctx, recoverPanic(func() error { return handler(ctx) }))
}

// add runs the ADD handler and prints its result. After a failure, also a panic or a failed write, it rolls back.
func (c *call) add(ctx context.Context) error {
	for _, u := range unknownKeys(c.plugin, c.req.Conf, "") {
		switch {
		case u.isCaseVariant:
			c.req.Warn("key %q is accepted in spite of its case: did you mean %q?", u.key, u.similar)
		case u.similar != "":
			c.req.Warn("key %q is unknown and ignored: did you mean %q?", u.key, u.similar)
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// An IPAM plugin may be killed without roll-back, because the calling plugin releases its leases.
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
	return c.req.rollBack(context.WithoutCancel(ctx), limit*2/9, interruptError(timed, err))
}

// interruptError returns err with code 11 if a signal or the deadline has ended ctx and err has no code.
func interruptError(ctx context.Context, err error) error {
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
// time for other steps. It returns ctx if ctx has no deadline.
func WithTwoThirds(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(deadline)*2/3)
}
