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

	// NS is the container's namespace: open in ADD and CHECK; in DEL nil when
	// it is gone, and then there is nothing to do in it; nil for IPAM plugins.
	NS *ns.NS

	// PrevResult is the result of the plugin before us (ADD) or of the whole
	// chain (CHECK, DEL); nil when there is none. In DEL one that cannot be read
	// counts as none.
	PrevResult *cni.Result

	// Valid holds the attachments that GC must keep.
	Valid cni.Set

	// Env and Stderr are handed on to delegates.
	Env    []string
	Stderr io.Writer

	plugin string
	undos  []undo
	done   []func()
}

type undo struct {
	what string
	do   func(context.Context) error
}

// NoInterface is the error of a chained plugin that does not find CNI_IFNAME in the container. It ends in err,
// rtnl.ErrNoLink, whose words programs look for.
func (r *Request) NoInterface(err error) error {
	return cni.Errorf(cni.CodeEnvironment, "CNI_IFNAME %q: no such interface in CNI_NETNS %q: %w", r.IfName, r.Netns,
		err)
}

// Decode reads the configuration into v. Errors are code 6 or 7 and name the
// key.
func (r *Request) Decode(v any) error { return cni.Unmarshal(r.Conf, v) }

// OnFail registers the undoing of an effect that ADD just had. When ADD
// fails, in whatever way, what was registered runs last in, first out, each
// with a context that does not end with the call's, but in time.
func (r *Request) OnFail(what string, do func(context.Context) error) {
	r.undos = append(r.undos, undo{what: what, do: do})
}

// OnDone registers what is to run when the call is over: after the answer was
// printed, and after the roll-back of a failed ADD. What an undo needs, a
// socket for instance, is closed here. The last registered runs first.
func (r *Request) OnDone(do func()) { r.done = append(r.done, do) }

// Warn tells the administrator, on standard error, what is worth knowing and
// no reason to fail.
func (r *Request) Warn(format string, args ...any) {
	fmt.Fprintf(r.Stderr, "%s: %s\n", r.plugin, fmt.Sprintf(format, args...))
}

// rollBack undoes what was registered, in limited time, and returns err, with
// what could not be undone in its details.
func (r *Request) rollBack(ctx context.Context, limit time.Duration, err error) error {
	e := *cni.AsError(err)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, u := range slices.Backward(r.undos) {
		step, cancel := context.WithTimeout(ctx, limit*3/4) // the others have time left
		failed := catch(func() error { return u.do(step) })
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
		// Closing a descriptor of a namespace cannot lose anything.
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

// describe makes the error object that is printed for err. A lock that somebody
// held for too long is to be tried again, wherever it is.
func describe(err error) *cni.Error {
	e := *cni.AsError(err)
	if e.Code == cni.CodeInternal && errors.Is(err, statefile.ErrBusy) {
		e.Code = cni.CodeTryAgain
	}
	return &e
}
