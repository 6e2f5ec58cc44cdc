// Package oneprocessor has the program that imports it run Go code on one processor from its start on: on several each
// answer of the kernel or of another program wakes threads in vain (docs/design.md, "The start of a program"). The
// runtime initialises this package as one of the first: it needs no other.
package oneprocessor

import "runtime"

// Before is the number of processors that the runtime had chosen, for programs that go on to serve many.
var Before = runtime.GOMAXPROCS(1)
