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

// Request is one ADD, DEL, CHECK, GC or STATUS. In GC and STATUS, the fields of a container are empty.
type Request struct {
	cni.Attachment

	Netns   string // CNI_NETNS; value of "sandbox" in results
	Args    string // CNI_ARGS
	Path    string // CNI_PATH
	Conf    []byte // the configuration, unchanged
	Version string // cniVersion of the configuration
	IPAM    string // ipam.type; may be empty
	NS      *ns.NS // the container's namespace; nil for IPAM plugins, and in DEL if it no longer exists

	// PrevResult is the result of the previous plugin (ADD) or of the whole chain (CHECK, DEL). It is nil if there is
	// none or, in DEL, if it is invalid.
	PrevResult *cni.Result
	Valid      cni.Set // attachments that GC must keep

	// Env and Stderr are passed to delegates.
	Env    []string
	Stderr io.Writer

	plugin   string
	env      Env // of the call
	undos    []undo
	cleanups []func() // see OnDone
	warnings []string
	trace    *trace
	notify   func() // calls Env.Notify; nil after CatchSignals, and if signals may end the process
}

type undo struct {
	what string
	do   func(context.Context) error
}

// Decode decodes the configuration into v. Errors have code 6 or 7 and contain the key.
func (r *Request) Decode(v any) error { return cni.Unmarshal(r.Conf, v) }

// ConfigOf returns the Config of a plugin with the JSON keys W and the checked values C. Its Parse decodes the
// configuration into a copy of defaults. parse converts the copy to a C and adds all problems to the list.
func ConfigOf[W, C any](defaults W, parse func(*Request, W, *cni.Problems) C) Config[C] {
	return Config[C]{defaults, func(req *Request) (c C, err error) {
		w := defaults
		if err := req.Decode(&w); err != nil {
			return c, err
		}
		if err := cni.CheckSizes(&w); err != nil {
			return c, err
		}
		var problems cni.Problems
		c = parse(req, w, &problems)
		return c, problems.Err()
	}}
}

// OnFail registers the undo of an effect of ADD. If ADD fails, the undos run in reverse order, each with its own time
// limit. Call OnFail before the effect, because a failed operation may still have its effect. An ADD that can register
// the undo only after the effect calls CatchSignals before it.
func (r *Request) OnFail(what string, do func(context.Context) error) {
	r.CatchSignals()
	r.undos = append(r.undos, undo{what: what, do: do})
}

// CatchSignals makes signals end the context instead of the process. OnFail calls it. ADD must call it before an effect
// whose undo it registers only afterwards, such as the creation of a pair of links.
func (r *Request) CatchSignals() {
	if r.notify != nil {
		r.notify()
		r.notify = nil
	}
}

// OnDone registers a function for the end of the call, after the result has been printed or a failed ADD rolled back.
// It can close sockets that undos need. The functions run in reverse order.
func (r *Request) OnDone(do func()) { r.cleanups = append(r.cleanups, do) }

// Warn writes a warning to standard error and to the log.
func (r *Request) Warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
	fmt.Fprintf(r.Stderr, "%s: %s\n", r.plugin, r.warnings[len(r.warnings)-1])
}

// rollBack runs the undos within limit, and returns err with their errors in its details.
func (r *Request) rollBack(ctx context.Context, limit time.Duration, err error) error {
	e := *cni.AsError(err)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	end := r.trace.nest("roll-back")
	defer end(nil)
	for _, u := range slices.Backward(r.undos) {
		step, cancel := context.WithTimeout(ctx, limit*3/4) // leaves time for the other undos
		end := r.trace.nest(u.what)
		undoErr := recoverPanic(func() error { return u.do(step) })
		end(undoErr)
		cancel()
		if undoErr != nil {
			if e.Details != "" {
				e.Details += "; "
			}
			e.Details += fmt.Sprintf("roll-back: %s: %v", u.what, undoErr)
		}
	}
	return &e
}

func (r *Request) close() {
	for _, cleanup := range slices.Backward(r.cleanups) {
		cleanup()
	}
	if r.NS != nil {
		_ = r.NS.Close()
	}
}

// recoverPanic calls fn and returns its error. It converts a panic to an error.
func recoverPanic(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &cni.Error{Code: cni.CodeInternal, Msg: fmt.Sprintf("internal error: %v", v),
				Details: string(debug.Stack())}
		}
	}()
	return fn()
}

// errorObject returns the error object for err. Its code is 11 if another process held a lock for too long.
func errorObject(err error) *cni.Error {
	e := *cni.AsError(err)
	if e.Code == cni.CodeInternal && errors.Is(err, statefile.ErrBusy) {
		e.Code = cni.CodeTryAgain
	}
	return &e
}
