package cni

import (
	"errors"
	"syscall"
)

// Transient reports whether an error says that the machine was short of memory,
// buffers or descriptors, or did not answer in time: the same call may well
// succeed a moment later. DEL, which takes most refusals for final, leaves what it
// could not do to its repetition then.
func Transient(err error) bool {
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE,
		syscall.EAGAIN, syscall.ETIMEDOUT} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
