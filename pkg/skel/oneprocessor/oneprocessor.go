// Package oneprocessor has the program that imports it run Go code on one processor from its start on: on several each
// answer of the kernel or of another program wakes threads in vain (docs/design.md, "The start of a program").
package oneprocessor

import "runtime"

// The runtime initialises this package as one of the first: it needs no other.
func init() { runtime.GOMAXPROCS(1) }
