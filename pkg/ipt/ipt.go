// Package ipt changes iptables rules: one iptables-restore --noflush for each family of a call, which
// applies all lines or none, under the xtables lock with a deadline.
//
// There are two variants of the programs, for nf_tables and for the older x_tables ("legacy"), and a
// host may have both, with rules in each. LegacyHas looks into the x_tables of the kernel without a
// program; the chains of the other variant are visible to package nft.
package ipt

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Family is an IP version.
type Family int

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

func (f Family) program() string {
	if f == IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// Variant is one of the two implementations of iptables.
type Variant string

// The variants, by the names that the programs carry.
const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

// lockFile keeps the legacy programs apart; those of nf_tables do without.
const lockFile = "/run/xtables.lock"

// exitBusy is what the programs exit with when the lock did not come free (RESOURCE_PROBLEM).
const exitBusy = 4

// Tool is the programs of one family and variant.
type Tool struct {
	Family  Family
	Variant Variant

	restore, list string
}

// Find returns the programs that are plainly called iptables: which variant that is the administrator
// decided. It runs a program only where the name behind the links does not tell.
// The error matches process.ErrNotFound when there is none.
func Find(ctx context.Context, f Family) (Tool, error) {
	t, err := lookUp(f, f.program())
	if err != nil {
		return Tool{}, err
	}
	real, err := filepath.EvalSymlinks(t.restore)
	if err != nil {
		return Tool{}, err
	}
	switch name := filepath.Base(real); {
	case strings.Contains(name, "nft"):
		t.Variant = NFT
	case strings.Contains(name, "legacy"):
		t.Variant = Legacy
	default:
		out, err := t.run(ctx, command{path: t.list, args: []string{"--version"}})
		if err != nil {
			return Tool{}, err
		}
		t.Variant = Legacy // the older programs do not say so
		if strings.Contains(out, "nf_tables") {
			t.Variant = NFT
		}
	}
	return t, nil
}

// FindVariant returns the programs of a variant, also where they only have the plain names.
func FindVariant(ctx context.Context, f Family, v Variant) (Tool, error) {
	t, err := lookUp(f, f.program()+"-"+string(v))
	if err == nil {
		t.Variant = v
		return t, nil
	}
	if plain, plainErr := Find(ctx, f); plainErr == nil && plain.Variant == v {
		return plain, nil
	}
	return Tool{}, err
}

func lookUp(f Family, program string) (Tool, error) {
	restore, err := process.LookPath(program + "-restore")
	if err != nil {
		return Tool{}, err
	}
	list, err := process.LookPath(program)
	if err != nil {
		return Tool{}, err
	}
	return Tool{Family: f, restore: restore, list: list}, nil
}

// Restore applies the lines, in the syntax of iptables-restore, to a table: all or none. A chain that
// is named in a line ":CHAIN -" is emptied, or made when it is missing; all others stay as they are.
// When the xtables lock is not free before ctx's deadline, the error is a *statefile.Busy with its
// holder.
func (t Tool) Restore(ctx context.Context, table string, lines []string) error {
	script := "*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
	_, err := t.run(ctx, command{path: t.restore, args: []string{"--noflush", "-w", waitSeconds(ctx)}, stdin: script})
	return err
}

// List returns the rules of a chain, or of the whole table when chain is empty.
func (t Tool) List(ctx context.Context, table, chain string) ([]Rule, error) {
	args := []string{"-w", waitSeconds(ctx), "-t", table, "-S"}
	if chain != "" {
		args = append(args, chain)
	}
	out, err := t.run(ctx, command{path: t.list, args: args})
	if err != nil {
		return nil, err
	}
	return parseRules(out), nil
}

// waitSeconds is how long the program may wait for the lock.
func waitSeconds(ctx context.Context) string {
	deadline, ok := ctx.Deadline()
	if !ok {
		return "60"
	}
	return strconv.Itoa(max(1, int(time.Until(deadline).Seconds())))
}

type command struct {
	path  string
	args  []string
	stdin string
}

func (t Tool) run(ctx context.Context, c command) (string, error) {
	var out, errs strings.Builder
	cmd := process.Command{Path: c.path, Args: c.args, Stdin: []byte(c.stdin), Stdout: &out, Stderr: &errs}
	err := cmd.Run(ctx)
	if err == nil {
		return out.String(), nil
	}
	exit := (*process.ExitError)(nil)
	if errors.As(err, &exit) && (exit.Killed != nil || exit.Status.ExitStatus() == exitBusy) {
		if busy := holder(); busy != nil {
			return "", fmt.Errorf("%s: %w", filepath.Base(c.path), busy)
		}
	}
	text := strings.Join(strings.Fields(errs.String()), " ")
	return "", fmt.Errorf("%s: %w: %s%s", filepath.Base(c.path), err, text, failedLine(text, c.stdin))
}

// holder is who has the xtables lock, nil when nobody has.
func holder() error {
	ctx, cancel := context.WithDeadline(context.Background(), time.Now())
	defer cancel()
	held, err := statefile.Lock(ctx, lockFile, 0o600)
	if err == nil {
		return held.Unlock()
	}
	if errors.Is(err, statefile.ErrBusy) {
		return err
	}
	return nil
}

// failedLine quotes the line of the script that the program says has failed.
func failedLine(text, script string) string {
	_, after, ok := strings.Cut(text, "line ")
	if !ok {
		return ""
	}
	digits := after[:len(after)-len(strings.TrimLeft(after, "0123456789"))]
	n, err := strconv.Atoi(digits)
	lines := strings.Split(script, "\n")
	if err != nil || n < 1 || n > len(lines) {
		return ""
	}
	return fmt.Sprintf(" (%s)", lines[n-1])
}

// Installed says whether there are programs for the family, without running one.
func Installed(f Family) error {
	_, err := lookUp(f, f.program())
	return err
}
