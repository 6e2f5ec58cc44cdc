// Package ipt edits tables of iptables.
//
// An Edit is a copy of a table together with the changes that the caller makes to it. Tool.Edit reads the table, lets
// the caller change the Edit, and applies the difference by one run of iptables-restore --noflush, which applies all
// lines or none. If there is no difference, it runs no program to write.
//
// There are two variants of the programs, for nf_tables and for the older x_tables ("legacy"). A host may have both,
// with rules in each. A Tool is one variant for one family. A Chain can be in either variant; its methods read
// nf_tables over netlink, which is cheaper than a program, and run a legacy program only if the kernel has the table.
//
// Chains have the names and comments of the reference plugins' chains (reference.go), so that either suite can remove
// the other's rules.
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

// Backend is the system that has a plugin's rules.
type Backend string

// The backends. With Auto, the plugin chooses the one that fits the kernel.
const (
	Auto     Backend = ""
	NFTables Backend = "nftables"
	IPTables Backend = "iptables"
)

// ParseBackend returns the backend that a key of the configuration names, and Auto for a nil value. The error for any
// other value has code 7.
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

func programName(f nft.Family) string { return f.String() + "tables" }

// Variant is one of the two implementations of iptables.
type Variant string

// The variants, with the names that the programs use.
const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

const (
	lockFile = "/run/xtables.lock" // lock of the legacy programs; the programs for nf_tables do not lock
	exitBusy = 4                   // exit status of the programs if another process holds the lock (RESOURCE_PROBLEM)
	attempts = 3                   // number of times that an edit is tried if other programs change the same rules
)

// Tool represents the programs of one family and variant.
type Tool struct {
	Family  nft.Family
	Variant Variant

	name    string // base name of the programs; empty = any of the variant
	restore string // path of iptables-restore; empty = not searched yet
}

// FindTool returns the programs that are called iptables or ip6tables. Their variant is the administrator's choice. It
// runs a program only if the name of the file that the links point to does not show the variant. The error matches
// process.ErrNotFound if a program is missing.
func FindTool(ctx context.Context, f nft.Family) (Tool, error) {
	t := Tool{Family: f, name: programName(f)}
	var err error
	if t.restore, err = t.path(ctx, "-restore"); err != nil {
		return Tool{}, err
	}
	real, err := filepath.EvalSymlinks(t.restore)
	if err != nil {
		return Tool{}, err
	}
	isNFT := strings.Contains(filepath.Base(real), "nft")
	if !isNFT && !strings.Contains(filepath.Base(real), "legacy") {
		// go-iptables also runs this command, but does not export the variant. Older programs do not print one; they
		// are legacy.
		var out strings.Builder
		program, err := t.path(ctx, "")
		if err == nil {
			err = process.Command{Path: program, Args: []string{"--version"}, Stdout: &out}.Run(ctx)
		}
		if err != nil {
			return Tool{}, fmt.Errorf("%s --version: %w", t.name, err)
		}
		isNFT = strings.Contains(out.String(), "nf_tables")
	}
	t.Variant = Legacy
	if isNFT {
		t.Variant = NFT
	}
	return t, nil
}

// path returns the path of a program: of iptables, or of the program with the suffix.
func (t Tool) path(ctx context.Context, suffix string) (string, error) {
	if t.name != "" {
		return process.LookPath(t.name + suffix)
	}
	path, err := process.LookPath(programName(t.Family) + "-" + string(t.Variant) + suffix)
	if err != nil {
		if plain, plainErr := FindTool(ctx, t.Family); plainErr == nil && plain.Variant == t.Variant {
			return plain.path(ctx, suffix)
		}
	}
	return path, err
}

// CheckInstalled returns an error that names a missing program of the family. It does not run a program.
func CheckInstalled(f nft.Family) error {
	for _, suffix := range []string{"-restore", ""} {
		if _, err := process.LookPath(programName(f) + suffix); err != nil {
			return err
		}
	}
	return nil
}

// Ready returns an error if the programs for IPv4 cannot add rules, because one is not installed, or because they need
// nf_tables and the kernel has none. It does not run a program. It does not check the programs for IPv6, which only
// containers with an IPv6 address need.
func Ready(nf *nft.Conn) error {
	if err := CheckInstalled(nft.IPv4); err != nil {
		return err
	}
	restore, err := process.LookPath(programName(nft.IPv4) + "-restore")
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

// AsFallback returns err, an error of the backend iptables, with the reason why nftables was not used. It returns err
// unchanged if reason is nil, and nil if err is nil.
func AsFallback(err, reason error) error {
	if err == nil || reason == nil {
		return err
	}
	return fmt.Errorf("%w (instead of nftables: %w)", err, reason)
}

// NotInstalled reports whether missing programs are the only cause of an error, or of each of several joined errors.
func NotInstalled(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !NotInstalled(e) })
	}
	return err == process.ErrNotFound || err != nil && NotInstalled(errors.Unwrap(err))
}

// WarnIfMissing returns err. If missing programs are its only cause, WarnIfMissing instead warns with the text
// "what: err" and returns nil.
func WarnIfMissing(warn func(format string, args ...any), what string, err error) error {
	if !NotInstalled(err) {
		return err
	}
	warn("%s: %v", what, err)
	return nil
}

// Restore applies lines in the syntax of iptables-restore to a table: all or none. A line ":CHAIN -" empties or creates
// the chain; other chains stay as they are. If another process holds the xtables lock until ctx's deadline, the error
// matches statefile.ErrBusy.
func (t Tool) Restore(ctx context.Context, table string, lines []string) error {
	return t.runRestore(ctx, table, lines, false)
}

// Test parses the lines as Restore does, but does not apply them. It neither waits for a lock nor looks up names.
func (t Tool) Test(ctx context.Context, table string, lines []string) error {
	return t.runRestore(ctx, table, lines, true)
}

// lineMax is the length of the longest line that iptables-restore reads. It parses the rest of a longer line as another
// line, so the author of a configuration could write any rule.
const lineMax = 10238

func (t Tool) runRestore(ctx context.Context, table string, lines []string, isTrial bool) error {
	for _, l := range lines {
		if len(l) > lineMax || strings.Contains(l, "\n") {
			return cni.Errorf(cni.CodeConfig, "rule for %s: has %d bytes, more than %d, or several lines: %.64q...",
				programName(t.Family), len(l), lineMax, l)
		}
	}
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
	failed := 0 // the line's number; line 1 names the table
	_, after, _ := strings.Cut(text, "line ")
	_, _ = fmt.Sscanf(after, "%d", &failed)
	if failed >= 2 && failed-2 < len(lines) {
		err = fmt.Errorf("%w (%s)", err, lines[failed-2])
	}
	return t.addLacking(table, err)
}

// addLacking returns err with code 2 and kernel modules, if the text of the error shows that the kernel lacks them.
func (t Tool) addLacking(table string, err error) error {
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
	case has("unable to initialize table", "Table does not exist"): // legacy programs
		modules = []string{t.Family.String() + "_tables", t.Family.String() + "table_" + table}
	case has("missing kernel module"):
		modules = t.extensions(text)
	case has("CHAIN_ADD failed (No such file or directory)"): // a base chain
		modules = []string{"nft_chain_" + table}
	default:
		return err
	}
	return cni.LacksModules(err, strings.Join(modules, ", "))
}

// extensions returns the modules of the matches and targets that the programs warn of: "Extension comment revision 0
// not supported, missing kernel module?"
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

// waitSeconds returns the number of seconds that a program may wait for the lock.
func waitSeconds(ctx context.Context) int {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 60
	}
	return max(1, int(time.Until(deadline).Seconds()))
}

// lockHolder returns an error that names the process that holds the xtables lock. It returns nil if the lock is free or
// cannot be examined.
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
