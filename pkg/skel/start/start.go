// Package start has the program that imports it run Go code on one processor, on a stack that is large enough, from its
// start on: on several processors each answer of the kernel or of another program wakes threads in vain
// (docs/design.md, "The start of a program"). The runtime initializes this package as one of the first: it needs no
// other.
package start

import "runtime"

// Processors is the number of processors that the runtime had chosen, for programs that go on to serve many.
var Processors = runtime.GOMAXPROCS(1)

// A call needs a stack of 32 KiB. It is made at once: else the runtime doubles it four times, and each time copies it
// and reads the tables of the functions on it, which lie all over the file.
func init() { grow(nil) }

// grow has a frame of 28 KiB, for which the runtime makes room whether it is used or not.
//
//go:noinline
func grow(frame *[28 << 10]byte) {
	if frame != nil {
		var next [28 << 10]byte
		grow(&next)
	}
}
