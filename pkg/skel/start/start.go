// Package start configures the Go runtime for a short-lived plugin: one processor, and a large stack for the main
// goroutine. Importing it has this effect. It imports only runtime, so that it is initialized early.
//
// A plugin waits more than it computes. With several processors, each answer of the kernel or of another program would
// also wake other threads, which find nothing to do (docs/design.md, "Program start").
package start

import "runtime"

// Processors is the number of processors that the runtime had chosen. Long-running commands restore it.
var Processors = runtime.GOMAXPROCS(1)

// A goroutine starts with a stack of a few KiB, and the runtime doubles the stack when a function does not fit. A call
// needs 32 KiB. It would get there in four steps, and in each step the runtime copies the stack and reads tables about
// all functions on it, from pages of the executable that are otherwise not needed. grow makes the stack large enough in
// one step, while it is almost empty. The runtime shrinks a stack only during a garbage collection.
func init() { grow(nil) }

// grow has a frame of 28 KiB. The runtime enlarges the stack at the call. The recursion never happens; it only makes
// the compiler keep next.
//
//go:noinline
func grow(frame *[28 << 10]byte) {
	if frame != nil {
		var next [28 << 10]byte
		grow(&next)
	}
}
