package ipt

import (
	"errors"

	"github.com/hawser-cni/plugins/pkg/process"
)

// NotInstalled says whether the error is for want of a program.
func NotInstalled(err error) bool { return errors.Is(err, process.ErrNotFound) }
