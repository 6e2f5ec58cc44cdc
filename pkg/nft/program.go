package nft

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// program is nft(8). Only text that an administrator wrote in its language needs it.
const program = "nft"

// ErrRefused says that the nft program did not accept a script.
var ErrRefused = errors.New("refused by nft")

// RunProgram has the nft program run a script, everything or nothing. The error matches exec.ErrNotFound
// when it is not installed and ErrRefused when it ran and did not accept the script, and has what the
// program said.
func RunProgram(ctx context.Context, script string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	// It must not outlive us, and the signal for that comes when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var errs strings.Builder
	cmd := exec.CommandContext(ctx, path, "-f", "-")
	cmd.Stdin, cmd.Stderr = strings.NewReader(script), &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); errors.As(err, new(*exec.ExitError)) && ctx.Err() == nil {
		return fmt.Errorf("%w: %s", ErrRefused, strings.Join(strings.Fields(errs.String()), " "))
	} else if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(path), err, strings.Join(strings.Fields(errs.String()), " "))
	}
	return nil
}

// FindProgram says whether the nft program is installed.
func FindProgram() error {
	_, err := exec.LookPath(program)
	return err
}
