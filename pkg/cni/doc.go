// Package cni holds the words of the Container Network Interface protocol:
// what a plugin is asked (Config, Attachment, arguments), what it answers
// (Result, Error) and the versions in which both may be written. It is pure
// data: nothing here opens a file, a socket or a namespace.
package cni
