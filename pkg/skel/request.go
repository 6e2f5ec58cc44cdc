package skel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Request is one ADD, DEL, CHECK, GC or STATUS. GC and STATUS know only the
// network, the path and the configuration.
type Request struct {
	cni.Attachment

	Netns   string // CNI_NETNS as given; results name it as the sandbox
	Args    string // CNI_ARGS
	Path    string // CNI_PATH
	Conf    []byte // the configuration, as given
	Version string // its cniVersion
	IPAM    string // ipam.type; empty when there is none

	// NS is the container's namespace; nil in DEL when it is gone, and for IPAM plugins.
	NS *ns.NS

	// PrevResult is the result of the plugin before us (ADD) or of the whole chain
	// (CHECK, DEL); nil when there is none or, in DEL, when it cannot be read.
	PrevResult *cni.Result

	// Valid holds the attachments that GC must keep.
	Valid cni.Set

	// Env and Stderr are handed on to delegates.
	Env    []string
	Stderr io.Writer

	plugin   string
	programs []Program // of the running program
	failures string    // Env's
	looks    bool      // Env's Look
	undos    []undo
	done     []func()
	warnings []string
	trace    *trace

	notify func() // asks for signals; nil = that is done, or not wanted
}

type undo struct {
	what string
	do   func(context.Context) error
}

// NoInterface is the error of a container without CNI_IFNAME. Runtimes search for the text of err, rtnl.ErrNoLink.
func (r *Request) NoInterface(err error) error {
	return cni.Errorf(cni.CodeEnvironment, "CNI_IFNAME %q: no such interface in CNI_NETNS %q: %w", r.IfName, r.Netns,
		err)
}

// Decode reads the configuration into v. Errors are code 6 or 7 and name the
// key.
func (r *Request) Decode(v any) error { return cni.Unmarshal(r.Conf, v) }

// ConfigOf is the Config whose Parse decodes the configuration over defaults, and parse collects what is wrong with it.
func ConfigOf[W, C any](defaults W, parse func(*Request, W, *cni.Problems) C) Config[C] {
	return Config[C]{defaults, func(req *Request) (c C, err error) {
		w := defaults
		if err := req.Decode(&w); err != nil {
			return c, err
		}
		if err := cni.CheckSizes(w); err != nil {
			return c, err
		}
		var problems cni.Problems
		c = parse(req, w, &problems)
		return c, problems.Err()
	}}
}

// OnFail registers the undo of an effect that ADD is about to have: a failed one may
// be there. When ADD fails, the last undo runs first, each in limited time of its own.
func (r *Request) OnFail(what string, do func(context.Context) error) {
	r.SignalsEndContext()
	r.undos = append(r.undos, undo{what: what, do: do})
}

// SignalsEndContext has a signal end the context from now on, and no longer the process. OnFail calls it; an ADD whose
// undo stands behind its first effect (a pair, a record) calls it before that effect.
func (r *Request) SignalsEndContext() {
	if r.notify != nil {
		r.notify()
		r.notify = nil
	}
}

// OnDone registers a function for the end of the call, when the answer is printed and
// a failed ADD rolled back: it closes sockets that undos need. The last one runs first.
func (r *Request) OnDone(do func()) { r.done = append(r.done, do) }

// Warn writes to standard error, for the administrator, and to the log.
func (r *Request) Warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
	fmt.Fprintf(r.Stderr, "%s: %s\n", r.plugin, r.warnings[len(r.warnings)-1])
}

// rollBack runs the undos, in limited time, and returns err with their errors in its
// details.
func (r *Request) rollBack(ctx context.Context, limit time.Duration, err error) error {
	e := *cni.AsError(err)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	end := r.trace.within("roll-back")
	defer end(nil)
	for _, u := range slices.Backward(r.undos) {
		step, cancel := context.WithTimeout(ctx, limit*3/4) // the others have time left
		end := r.trace.within(u.what)
		failed := catch(func() error { return u.do(step) })
		end(failed)
		cancel()
		if failed != nil {
			if e.Details != "" {
				e.Details += "; "
			}
			e.Details += fmt.Sprintf("roll-back: %s: %v", u.what, failed)
		}
	}
	return &e
}

func (r *Request) close() {
	for _, done := range slices.Backward(r.done) {
		done()
	}
	if r.NS != nil {
		_ = r.NS.Close()
	}
}

// catch calls fn and makes an error of a panic in it.
func catch(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &cni.Error{Code: cni.CodeInternal, Msg: fmt.Sprintf("internal error: %v", v),
				Details: string(debug.Stack())}
		}
	}()
	return fn()
}

// describe makes the error object that is printed for err. A lock that somebody held
// for too long is code 11.
func describe(err error) *cni.Error {
	e := *cni.AsError(err)
	if e.Code == cni.CodeInternal && errors.Is(err, statefile.ErrBusy) {
		e.Code = cni.CodeTryAgain
	}
	return &e
}
