// Package ipt shows a table of iptables by one iptables-save, and compares or changes rules by one
// iptables-restore --noflush, which applies all lines or none, under the xtables lock with a deadline.
// Tool.List alone looks through go-iptables.
//
// There are two variants of the programs, for nf_tables and for the older x_tables ("legacy"), and a
// host may have both, with rules in each. Chain finds its own in either.
package ipt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// programOf is the name of a family's program.
func programOf(f nft.Family) string {
	if f == nft.IPv6 {
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

const (
	// lockFile keeps the legacy programs apart; those of nf_tables do without.
	lockFile = "/run/xtables.lock"
	// exitBusy is what the programs exit with when the lock did not come free (RESOURCE_PROBLEM).
	exitBusy = 4
	// attempts bounds how often a change is tried because others changed the same rules.
	attempts = 3
)

// Tool is the programs of one family and variant.
type Tool struct {
	Family  nft.Family
	Variant Variant

	restore, list string
}

// Find returns the programs that are plainly called iptables: which variant that is the administrator
// decided. It runs a program only where the name behind the links does not tell.
// The error matches process.ErrNotFound when there is none.
func Find(ctx context.Context, f nft.Family) (Tool, error) {
	t, err := lookUp(f, programOf(f))
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
		// go-iptables asks this too, and keeps the answer to itself.
		var out strings.Builder
		if err := (process.Command{Path: t.list, Args: []string{"--version"}, Stdout: &out}).Run(ctx); err != nil {
			return Tool{}, fmt.Errorf("%s --version: %w", t.list, err)
		}
		t.Variant = Legacy // the older programs do not say so
		if strings.Contains(out.String(), "nf_tables") {
			t.Variant = NFT
		}
	}
	return t, nil
}

// FindVariant returns the programs of a variant, also where they only have the plain names.
func FindVariant(ctx context.Context, f nft.Family, v Variant) (Tool, error) {
	t, err := lookUp(f, programOf(f)+"-"+string(v))
	if err == nil {
		t.Variant = v
		return t, nil
	}
	if plain, plainErr := Find(ctx, f); plainErr == nil && plain.Variant == v {
		return plain, nil
	}
	return Tool{}, err
}

func lookUp(f nft.Family, program string) (Tool, error) {
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

// Installed says whether there are programs for the family, without running one.
func Installed(f nft.Family) error {
	_, err := lookUp(f, programOf(f))
	return err
}

// NotInstalled says whether a missing program is the only cause of the error: all joined errors have it.
func NotInstalled(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !NotInstalled(e) })
	}
	return err == process.ErrNotFound || err != nil && NotInstalled(errors.Unwrap(err))
}

// Change applies the lines of a restore that edit makes from what is there. When others changed the same rules
// meanwhile, it starts again. No lines cost no program.
func (t Tool) Change(ctx context.Context, table string, edit func() ([]string, error)) error {
	for attempt := 1; ; attempt++ {
		lines, err := edit()
		if err != nil || len(lines) == 0 {
			return err
		}
		err = t.Restore(ctx, table, lines)
		if err == nil || attempt == attempts || ctx.Err() != nil || errors.Is(err, statefile.ErrBusy) {
			return err
		}
	}
}

// Restore applies the lines, in the syntax of iptables-restore, to a table: all or none. A chain that
// is named in a line ":CHAIN -" is emptied, or made when it is missing; all others stay as they are.
// When the xtables lock is not free before ctx's deadline, the error is a *statefile.Busy with its
// holder.
func (t Tool) Restore(ctx context.Context, table string, lines []string) error {
	_, err := t.run(ctx, table, lines, nil)
	return err
}

// Missing returns the first of the rules that iptables does not have, ok = false when it has all. It needs one run of
// the program, whose time does not grow with the rules of others.
func (t Tool) Missing(ctx context.Context, table string, rules []Rule) (missing Rule, ok bool, err error) {
	lines := make([]string, len(rules))
	for i, r := range rules {
		lines[i] = "-C " + r.String()
	}
	const noSuchRule = 1
	failed, err := t.run(ctx, table, lines, nil)
	if exit := (*process.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == noSuchRule && failed >= 0 {
		return rules[failed], true, nil
	}
	return Rule{}, false, err
}

// run runs iptables-restore. With the error comes the index of the line that failed, -1 when that is unknown.
func (t Tool) run(ctx context.Context, table string, lines []string, out io.Writer) (failed int, err error) {
	var errs strings.Builder
	cmd := process.Command{Path: t.restore, Args: []string{"--noflush", "-w", strconv.Itoa(waitSeconds(ctx))},
		Stdin:  []byte("*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"),
		Stdout: out, Stderr: &errs}
	if err = cmd.Run(ctx); err == nil {
		return -1, nil
	}
	exit := (*process.ExitError)(nil)
	if ctx.Err() != nil || errors.As(err, &exit) && exit.ExitCode() == exitBusy {
		if busy := holder(); busy != nil {
			return -1, fmt.Errorf("%s: %w", filepath.Base(t.restore), busy)
		}
	}
	text := strings.Join(strings.Fields(errs.String()), " ")
	err = fmt.Errorf("%s: %w: %s", filepath.Base(t.restore), err, text)
	if failed = failedLine(text) - 2; failed >= 0 && failed < len(lines) { // the first line is the table's
		return failed, fmt.Errorf("%w (%s)", err, lines[failed])
	}
	return -1, err
}

// failedLine is the number of the line that the program says has failed, 0 when it says none.
func failedLine(text string) int {
	_, after, _ := strings.Cut(text, "line ")
	digits := after[:len(after)-len(strings.TrimLeft(after, "0123456789"))]
	n, _ := strconv.Atoi(digits)
	return n
}

// List returns those of the chains that there are, with their rules. Each chain is a run of the program, and before
// the first one come two, for the program's version and the names of all chains. It waits for the xtables lock as
// long as the context may.
func (t Tool) List(ctx context.Context, table string, chains ...string) (s Saved, err error) {
	protocol := iptables.ProtocolIPv4
	if t.Family == nft.IPv6 {
		protocol = iptables.ProtocolIPv6
	}
	lib, err := iptables.New(iptables.IPFamily(protocol), iptables.Path(t.list), iptables.Timeout(waitSeconds(ctx)))
	if err != nil {
		return s, t.lookFailure(err)
	}
	names, err := lib.ListChains(table)
	for _, chain := range chains {
		if ctx.Err() != nil {
			return s, context.Cause(ctx)
		}
		if err == nil && slices.Contains(names, chain) {
			var lines []string
			lines, err = lib.List(table, chain)
			s.Chains, s.Rules = append(s.Chains, chain), append(s.Rules, parseRules(lines)...)
		}
	}
	return s, t.lookFailure(err)
}

// lookFailure names the holder of a lock that did not come free.
func (t Tool) lookFailure(err error) error {
	if err == nil {
		return nil
	}
	if failed := (*iptables.Error)(nil); errors.As(err, &failed) && failed.ExitStatus() == exitBusy {
		if busy := holder(); busy != nil {
			err = busy
		}
	}
	return fmt.Errorf("%s: %w", filepath.Base(t.list), err)
}

// waitSeconds is how long the program may wait for the lock.
func waitSeconds(ctx context.Context) int {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 60
	}
	return max(1, int(time.Until(deadline).Seconds()))
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
