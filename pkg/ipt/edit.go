package ipt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Edit is a table as it was found, and the lines of a restore that change it. Its methods say what the table is to
// have: they add lines for the difference only, and Chains and Rules are from then on what the table will have. The
// zero value is an empty table.
type Edit struct {
	Chains []string
	Rules  []Rule   // of all chains, those of one chain in their order
	Lines  []string // of the restore; none if the table has all of that already
	Drops  []string // those of the chains whose policy is to drop
}

// Has says whether the table has the rule.
func (e *Edit) Has(r Rule) bool { return slices.ContainsFunc(e.Rules, r.Equal) }

// HasChain says whether the table has the chain.
func (e *Edit) HasChain(name string) bool { return slices.Contains(e.Chains, name) }

// Make makes those of the chains that are missing. The restore fails where somebody made one meanwhile.
func (e *Edit) Make(chains ...string) {
	for _, name := range chains {
		if !e.HasChain(name) {
			e.Lines, e.Chains = append(e.Lines, "-N "+name), append(e.Chains, name)
		}
	}
}

// First puts those of the rules that are missing first in their chains, where they end up in the given order.
func (e *Edit) First(rules ...Rule) {
	for _, r := range slices.Backward(rules) {
		if !e.Has(r) {
			e.Lines, e.Rules = append(e.Lines, "-I "+r.String()), slices.Insert(e.Rules, 0, r)
		}
	}
}

// Last appends those of the rules that are missing to their chains.
func (e *Edit) Last(rules ...Rule) {
	for _, r := range rules {
		if !e.Has(r) {
			e.Lines, e.Rules = append(e.Lines, r.Append()), append(e.Rules, r)
		}
	}
}

// Delete deletes the rules that match.
func (e *Edit) Delete(matches func(Rule) bool) {
	e.Rules = slices.DeleteFunc(e.Rules, func(r Rule) bool {
		gone := matches(r)
		if gone {
			e.Lines = append(e.Lines, r.Delete())
		}
		return gone
	})
}

// Fill gives the chain these rules, in this order, and no others. It makes a chain that is missing.
func (e *Edit) Fill(chain string, rules []Rule) {
	inChain := func(r Rule) bool { return r.Chain == chain }
	live := slices.DeleteFunc(slices.Clone(e.Rules), func(r Rule) bool { return !inChain(r) })
	if e.HasChain(chain) && slices.EqualFunc(live, rules, Rule.Equal) {
		return
	}
	if !e.HasChain(chain) {
		e.Chains = append(e.Chains, chain)
	}
	e.Lines = append(e.Lines, ":"+chain+" - [0:0]")
	for _, r := range rules {
		e.Lines = append(e.Lines, r.Append())
	}
	e.Rules = append(slices.DeleteFunc(e.Rules, inChain), rules...)
}

// Remove removes the chain with its rules, unless a rule of another chain leads to it, which the caller deletes first.
func (e *Edit) Remove(chain string) {
	leads := func(r Rule) bool { return r.Chain != chain && (r.Option("-j") == chain || r.Option("-g") == chain) }
	if !e.HasChain(chain) || slices.ContainsFunc(e.Rules, leads) {
		return
	}
	e.Lines = append(e.Lines, "-F "+chain, "-X "+chain)
	e.Chains = slices.DeleteFunc(e.Chains, func(name string) bool { return name == chain })
	e.Rules = slices.DeleteFunc(e.Rules, func(r Rule) bool { return r.Chain == chain })
}

// Edit looks at a table, lets change say what it is to have, and applies the difference by one restore: all of it or
// nothing. When others changed the same rules meanwhile, it starts again. Without a difference no restore runs.
func (t Tool) Edit(ctx context.Context, table string, change func(*Edit)) error {
	return t.EditFound(ctx, table, func() (*Edit, error) { return t.Look(ctx, table) }, change)
}

// EditFound is Edit with another look, which may know the table, or what matters of it, without a program.
func (t Tool) EditFound(ctx context.Context, table string, look func() (*Edit, error), change func(*Edit)) error {
	for attempt := 1; ; attempt++ {
		e, err := look()
		if err != nil {
			return err
		}
		if change(e); len(e.Lines) == 0 {
			return nil
		}
		err = t.Restore(ctx, table, e.Lines)
		if err == nil || attempt == attempts || ctx.Err() != nil || errors.Is(err, statefile.ErrBusy) {
			return err
		}
	}
}

// Look reads a table. A legacy table that the namespace lacks is empty, and no program runs: it would make the table.
func (t Tool) Look(ctx context.Context, table string) (*Edit, error) {
	read := t.list
	if t.Variant == Legacy {
		read = t.save
	}
	lines, err := read(ctx, table)
	if err != nil {
		err = t.lacking(table, err)
		return nil, fmt.Errorf("%s %s table %q: %w", t.Variant, programOf(t.Family), table, err)
	}
	return parseTable(lines), nil
}

// list reads a table through go-iptables, which runs two programs: one says its version, the other lists the table.
func (t Tool) list(ctx context.Context, table string) ([]string, error) {
	path, err := t.path(ctx, "")
	if err != nil {
		return nil, err
	}
	lib, err := iptables.New(iptables.Path(path), iptables.Timeout(waitSeconds(ctx)))
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	// The library hands the name of the chain on to "iptables -S", which lists all where an option takes its place.
	return lib.List(table, "--ipv"+t.Family.Digit())
}

// save reads a legacy table by iptables-save, which does not wait for the xtables lock, as iptables -S does. /proc says
// whether there is one. In a container of LXC its file cannot be read, since its owner is not mapped: then the program,
// which fails without a table, tells.
func (t Tool) save(ctx context.Context, table string) ([]string, error) {
	names, err := os.ReadFile(ns.Proc() + "/net/" + t.Family.String() + "_tables_names")
	hidden := errors.Is(err, fs.ErrPermission)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !slices.Contains(strings.Fields(string(names)), table):
		return nil, nil
	case err != nil && !hidden:
		return nil, err
	}
	path, err := t.path(ctx, "-save")
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	err = process.Command{Path: path, Args: []string{"-t", table}, Stdout: &out}.Run(ctx)
	if hidden && err != nil && ctx.Err() == nil {
		return nil, nil
	}
	return strings.Split(out.String(), "\n"), err
}

// parseTable reads the lines of iptables -S and of iptables-save.
func parseTable(lines []string) *Edit {
	e := &Edit{}
	for _, line := range lines {
		words := split(line)
		switch {
		case len(words) > 0 && strings.HasPrefix(words[0], ":"):
			e.Chains = append(e.Chains, words[0][1:])
		case len(words) > 1 && (words[0] == "-P" || words[0] == "-N"):
			e.Chains = append(e.Chains, words[1])
		case len(words) > 1 && words[0] == "-A":
			e.Rules = append(e.Rules, Rule{Chain: words[1], Args: words[2:]})
		}
		if len(words) > 1 && words[0] != "-A" && slices.Contains(words[1:], "DROP") { // :FORWARD DROP, -P FORWARD DROP
			e.Drops = append(e.Drops, e.Chains[len(e.Chains)-1])
		}
	}
	return e
}

// Rule is one rule: the chain it is in, and the arguments that make it.
type Rule struct {
	Chain string
	Args  []string
}

// NewRule builds a rule.
func NewRule(chain string, args ...string) Rule { return Rule{Chain: chain, Args: args} }

// Append is the line that appends the rule.
func (r Rule) Append() string { return "-A " + r.String() }

// Delete is the line that deletes the first rule equal to it.
func (r Rule) Delete() string { return "-D " + r.String() }

// String is the chain and the arguments, quoted where iptables-restore needs that.
func (r Rule) String() string {
	var b strings.Builder
	b.WriteString(quote(r.Chain))
	for _, a := range r.Args {
		b.WriteByte(' ')
		b.WriteString(quote(a))
	}
	return b.String()
}

// Option is the argument after the name, such as "-j" or "--comment"; empty when there is none.
func (r Rule) Option(name string) string {
	i := slices.Index(r.Args, name)
	if i < 0 || i+1 == len(r.Args) {
		return ""
	}
	return r.Args[i+1]
}

// Equal compares without regard to the order of the arguments, which the versions print differently.
func (r Rule) Equal(o Rule) bool {
	if r.Chain != o.Chain || len(r.Args) != len(o.Args) {
		return false
	}
	a, b := slices.Sorted(slices.Values(r.Args)), slices.Sorted(slices.Values(o.Args))
	return slices.Equal(a, b)
}

// MissingInOrder returns the wanted rules that the live ones do not have in this order. Others may stand between.
func MissingInOrder(live, want []Rule) (out []Rule) {
	for _, w := range want {
		if i := slices.IndexFunc(live, w.Equal); i >= 0 {
			live = live[i+1:]
		} else {
			out = append(out, w)
		}
	}
	return out
}

// Without returns those of the rules that are not among the others, in any order.
func Without(rules, others []Rule) (out []Rule) {
	for _, r := range rules {
		if !slices.ContainsFunc(others, r.Equal) {
			out = append(out, r)
		}
	}
	return out
}

func quote(arg string) string {
	if arg != "" && !strings.ContainsAny(arg, " \t\"'\\") {
		return arg
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(arg) + `"`
}

// split cuts a line at blanks outside double quotes; a backslash takes the next character as it is.
func split(line string) (out []string) {
	for i := 0; i < len(line); i++ {
		if line[i] == ' ' {
			continue
		}
		var word []byte
		for quoted := false; i < len(line) && (quoted || line[i] != ' '); i++ {
			switch {
			case line[i] == '"':
				quoted = !quoted
				continue
			case line[i] == '\\' && i+1 < len(line):
				i++
			}
			word = append(word, line[i])
		}
		out = append(out, string(word))
	}
	return out
}

// chainNameMax is the longest name of a chain that iptables takes, in bytes.
const chainNameMax = 28

// targets are those of iptables and of its usual extensions. A rule that names one does not lead to a chain.
const targets = " ACCEPT DROP QUEUE RETURN ACCOUNT AUDIT CHAOS CHECKSUM CLASSIFY CLUSTERIP CONNMARK CONNSECMARK CT " +
	"DELUDE DHCPMAC DNAT DNETMAP DNPT DSCP ECHO ECN HL HMARK IDLETIMER IPMARK LED LOG LOGMARK MARK MASQUERADE " +
	"MIRROR NAT NETMAP NFLOG NFQUEUE NOTRACK PROTO RATEEST RAWDNAT RAWSNAT REDIRECT REJECT SAME SECMARK SET SNAT " +
	"SNPT SYNPROXY SYSRQ TARPIT TCPMSS TCPOPTSTRIP TEE TOS TPROXY TRACE TTL ULOG "

// IsChainName says whether iptables takes the name for a chain, and iptables-restore a line with it.
func IsChainName(name string) bool {
	notPlain := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'\`, r) }
	return name != "" && len(name) <= chainNameMax && !strings.ContainsAny(name[:1], "-!") &&
		!strings.ContainsFunc(name, notPlain) && !strings.Contains(targets, " "+name+" ")
}
