package nft

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/hawser-cni/plugins/pkg/process"
)

// program is nft(8). Only text that an administrator wrote in its language needs it.
const program = "nft"

// ErrRefused says that the nft program did not accept a script.
var ErrRefused = errors.New("refused by nft")

// RunProgram has the nft program run a script, everything or nothing. The error matches process.ErrNotFound
// when it is not installed and ErrRefused when it ran and did not accept the script, and has what the
// program said.
func RunProgram(ctx context.Context, script string) error {
	path, err := process.LookPath(program)
	if err != nil {
		return err
	}
	var errs strings.Builder
	cmd := process.Command{Path: path, Args: []string{"-f", "-"}, Stdin: []byte(script), Stderr: &errs}
	err = cmd.Run(ctx)
	if err == nil {
		return nil
	}
	text := strings.Join(strings.Fields(errs.String()), " ")
	if exit := (*process.ExitError)(nil); errors.As(err, &exit) && exit.Killed == nil {
		return fmt.Errorf("%w: %s", ErrRefused, text)
	}
	return fmt.Errorf("%s: %w: %s", filepath.Base(path), err, text)
}

// FindProgram says whether the nft program is installed.
func FindProgram() error {
	_, err := process.LookPath(program)
	return err
}
