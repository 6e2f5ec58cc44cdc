// Package ipt edits tables of iptables: a look through go-iptables says what a table has, and one
// iptables-restore --noflush, which applies all lines or none, under the xtables lock with a deadline, makes the
// difference to what it is to have.
//
// There are two variants of the programs, for nf_tables and for the older x_tables ("legacy"), and a
// host may have both, with rules in each. Every look at a table is a Tool.Look, in one variant. Chain asks nf_tables
// over netlink first, and finds a chain in either variant.
package ipt

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Backend is where a plugin has its rules.
type Backend string

// The backends. Auto is the one that fits the kernel.
const (
	Auto     Backend = ""
	NFTables Backend = "nftables"
	IPTables Backend = "iptables"
)

// ParseBackend reads a key of the configuration. An absent one is Auto. Anything else than a backend is code 7.
func ParseBackend(key string, value *string) (Backend, error) {
	if value == nil {
		return Auto, nil
	}
	b := Backend(*value)
	if b != NFTables && b != IPTables {
		return Auto, cni.Refuse(key, *value, `is neither "nftables" nor "iptables"`).
			Suggest("leave it out for the one that fits")
	}
	return b, nil
}

// programOf is the name of a family's program.
func programOf(f nft.Family) string { return f.String() + "tables" }

// Variant is one of the two implementations of iptables.
type Variant string

// The variants, by the names that the programs carry.
const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

const (
	// lockFile keeps the legacy programs apart; those of nf_tables take no lock.
	lockFile = "/run/xtables.lock"
	// exitBusy is what the programs exit with when the lock did not come free (RESOURCE_PROBLEM).
	exitBusy = 4
	// attempts bounds how often an edit is tried because others changed the same rules.
	attempts = 3
)

// Tool is the programs of one family and variant.
type Tool struct {
	Family  nft.Family
	Variant Variant

	name    string // of the program; empty: whichever is of the variant
	restore string // the file of its iptables-restore, where Find looked for it
}

// Find returns the programs that are plainly called iptables: the administrator decided on the variant. It runs a
// program only where the name behind the links does not tell. The error matches process.ErrNotFound when there is none.
func Find(ctx context.Context, f nft.Family) (Tool, error) {
	t := Tool{Family: f, name: programOf(f)}
	var err error
	if t.restore, err = t.path(ctx, "-restore"); err != nil {
		return Tool{}, err
	}
	real, err := filepath.EvalSymlinks(t.restore)
	if err != nil {
		return Tool{}, err
	}
	saysNFT := strings.Contains(filepath.Base(real), "nft")
	if !saysNFT && !strings.Contains(filepath.Base(real), "legacy") {
		// go-iptables asks this too, and keeps the answer to itself. The older programs name no variant.
		var out strings.Builder
		program, err := t.path(ctx, "")
		if err == nil {
			err = process.Command{Path: program, Args: []string{"--version"}, Stdout: &out}.Run(ctx)
		}
		if err != nil {
			return Tool{}, fmt.Errorf("%s --version: %w", t.name, err)
		}
		saysNFT = strings.Contains(out.String(), "nf_tables")
	}
	t.Variant = Legacy
	if saysNFT {
		t.Variant = NFT
	}
	return t, nil
}

// path finds one of the programs: iptables itself, or the one with the suffix.
func (t Tool) path(ctx context.Context, suffix string) (string, error) {
	if t.name != "" {
		return process.LookPath(t.name + suffix)
	}
	path, err := process.LookPath(programOf(t.Family) + "-" + string(t.Variant) + suffix)
	if err != nil {
		if plain, plainErr := Find(ctx, t.Family); plainErr == nil && plain.Variant == t.Variant {
			return plain.path(ctx, suffix)
		}
	}
	return path, err
}

// CheckInstalled says which program of the family is missing, without running one.
func CheckInstalled(f nft.Family) error {
	for _, suffix := range []string{"-restore", ""} {
		if _, err := process.LookPath(programOf(f) + suffix); err != nil {
			return err
		}
	}
	return nil
}

// Ready says, without running a program, why those of IPv4 cannot make rules: one is not installed, or they are those
// over nf_tables, which the kernel lacks. Only containers with an address of IPv6 need the programs of that family.
func Ready(nf *nft.Conn) error {
	if err := CheckInstalled(nft.IPv4); err != nil {
		return err
	}
	restore, err := process.LookPath(programOf(nft.IPv4) + "-restore")
	if err == nil {
		restore, err = filepath.EvalSymlinks(restore)
	}
	if err != nil || !strings.Contains(filepath.Base(restore), string(NFT)) {
		return err
	}
	if err := nf.ProbeTables(); err != nil {
		return fmt.Errorf("%s needs nf_tables: %w", filepath.Base(restore), err)
	}
	return nil
}

// Instead adds to an error of iptables why nftables, which come first, could not be used; lack is nil where they could.
func Instead(err, lack error) error {
	if err == nil || lack == nil {
		return err
	}
	return fmt.Errorf("%w (instead of nftables: %w)", err, lack)
}

// NotInstalled says whether a missing program is the only cause of the error: all joined errors have it.
func NotInstalled(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !NotInstalled(e) })
	}
	return err == process.ErrNotFound || err != nil && NotInstalled(errors.Unwrap(err))
}

// WarnIfMissing returns err. If a missing program is the only cause it warns of that, after what, and returns nil.
func WarnIfMissing(warn func(format string, args ...any), what string, err error) error {
	if !NotInstalled(err) {
		return err
	}
	warn("%s: %v", what, err)
	return nil
}

// Restore applies the lines, in the syntax of iptables-restore, to a table: all or none. A chain that
// is named in a line ":CHAIN -" is emptied, or made when it is missing; all others stay as they are.
// When the xtables lock is not free before ctx's deadline, the error matches statefile.ErrBusy.
func (t Tool) Restore(ctx context.Context, table string, lines []string) error {
	return t.runRestore(ctx, table, lines, false)
}

// Try parses the lines as Restore does, but does not apply them. It does not wait for a lock, and does not look up
// names.
func (t Tool) Try(ctx context.Context, table string, lines []string) error {
	return t.runRestore(ctx, table, lines, true)
}

func (t Tool) runRestore(ctx context.Context, table string, lines []string, isTrial bool) error {
	program, err := t.restore, error(nil)
	if program == "" {
		program, err = t.path(ctx, "-restore")
	}
	if err != nil {
		return err
	}
	var errs strings.Builder
	cmd := process.Command{Path: program, Args: []string{"--noflush", "-w", strconv.Itoa(waitSeconds(ctx))},
		Stdin:  []byte("*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"),
		Stderr: &errs}
	if isTrial {
		cmd.Args = append(cmd.Args, "--test")
		err = cmd.RunNameless(ctx)
	} else {
		err = cmd.Run(ctx)
	}
	if err == nil {
		return nil
	}
	exit := (*process.ExitError)(nil)
	if ctx.Err() != nil || errors.As(err, &exit) && exit.ExitCode() == exitBusy {
		if busy := lockHolder(); busy != nil {
			return fmt.Errorf("%s: %w", filepath.Base(program), busy)
		}
	}
	text := strings.Join(strings.Fields(errs.String()), " ")
	err = fmt.Errorf("%s: %w: %s", filepath.Base(program), err, text)
	failed := 0 // the number of the line; the first one is the table's
	_, after, _ := strings.Cut(text, "line ")
	_, _ = fmt.Sscanf(after, "%d", &failed)
	if failed >= 2 && failed-2 < len(lines) {
		err = fmt.Errorf("%w (%s)", err, lines[failed-2])
	}
	return t.lacking(table, err)
}

// lacking gives the error code 2, and names the modules, where the programs say that the kernel lacks some.
func (t Tool) lacking(table string, err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	var modules []string
	switch {
	case has("generation id: Invalid argument", "generation id: Operation not supported"):
		modules = []string{"nf_tables"}
	case has("unable to initialize table", "Table does not exist"): // of the legacy programs
		modules = []string{t.Family.String() + "_tables", t.Family.String() + "table_" + table}
	case has("missing kernel module"):
		modules = t.extensions(text)
	case has("CHAIN_ADD failed (No such file or directory)"): // of a hook
		modules = []string{"nft_chain_" + table}
	default:
		return err
	}
	return cni.Lacking(err, strings.Join(modules, ", "))
}

// extensions are the modules of the matches and targets in the programs' warnings: "Extension comment revision 0 not
// supported, missing kernel module?"
func (t Tool) extensions(text string) (modules []string) {
	if t.Variant == NFT {
		modules = append(modules, "nft_compat")
	}
	for _, warning := range strings.Split(text, "Extension ")[1:] {
		name, _, _ := strings.Cut(warning, " ")
		switch name {
		case "tcp", "udp":
			name = "tcpudp"
		case "DNAT", "SNAT":
			name = "nat"
		case "MARK":
			name = "mark"
		}
		if !slices.Contains(modules, "xt_"+name) {
			modules = append(modules, "xt_"+name)
		}
	}
	return modules
}

// waitSeconds is how long the program may wait for the lock.
func waitSeconds(ctx context.Context) int {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 60
	}
	return max(1, int(time.Until(deadline).Seconds()))
}

// lockHolder is an error that names who has the xtables lock; nil when nobody has it.
func lockHolder() error {
	ctx, cancel := context.WithDeadline(context.Background(), time.Now())
	defer cancel()
	held, err := statefile.LockFile(ctx, lockFile, 0o600)
	if err == nil {
		return held.Unlock()
	}
	if errors.Is(err, statefile.ErrBusy) {
		return err
	}
	return nil
}
