package ipt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/process"
)

// Saved is a table as iptables-save shows it: all its chains and rules.
type Saved struct {
	Chains []string
	Rules  []Rule
}

// Save reads a table of one variant by one run of a program. A legacy table that the namespace does not have is
// empty: asking a program would make it. The program does not wait for the xtables lock.
func Save(ctx context.Context, f nft.Family, v Variant, table string) (s Saved, err error) {
	hidden := false
	if v == Legacy {
		there, err := hasLegacyTable(f, table)
		if hidden = errors.Is(err, fs.ErrPermission); !there && !hidden {
			return s, err
		}
	}
	save, err := process.LookPath(programOf(f) + "-" + string(v) + "-save")
	if plain, plainErr := Find(ctx, f); err != nil && plainErr == nil && plain.Variant == v {
		save, err = process.LookPath(programOf(f) + "-save")
	}
	var out strings.Builder
	if err == nil {
		err = process.Command{Path: save, Args: []string{"-t", table}, Stdout: &out}.Run(ctx)
	}
	if hidden && ctx.Err() == nil && !NotInstalled(err) {
		err = nil // the program runs and cannot show the table: there is none
	}
	if err != nil {
		return s, fmt.Errorf("%s %s table %q: %w", v, programOf(f), table, err)
	}
	lines := strings.Split(out.String(), "\n")
	for _, line := range lines {
		if header, ok := strings.CutPrefix(line, ":"); ok {
			name, _, _ := strings.Cut(header, " ")
			s.Chains = append(s.Chains, name)
		}
	}
	s.Rules = parseRules(lines)
	return s, nil
}
