package ipt

import (
	"errors"
	"os/exec"
)

// NotInstalled says whether the error is for want of a program.
func NotInstalled(err error) bool { return errors.Is(err, exec.ErrNotFound) }
