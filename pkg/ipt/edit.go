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

// Edit is a copy of a table with changes. The methods that change it update Chains and Rules to the new state, and add
// lines for iptables-restore to Lines. They add no line if the table has the wanted state. The zero value is an empty
// table.
type Edit struct {
	Chains []string
	Rules  []Rule   // of all chains; the rules of one chain are in order
	Lines  []string // for iptables-restore
	Drops  []string // chains whose policy is DROP
}

// Has reports whether the table has the rule.
func (e *Edit) Has(r Rule) bool { return slices.ContainsFunc(e.Rules, r.Equal) }

// HasChain reports whether the table has the chain.
func (e *Edit) HasChain(name string) bool { return slices.Contains(e.Chains, name) }

// CreateChains creates missing chains. iptables-restore fails if another program creates one of them concurrently.
func (e *Edit) CreateChains(chains ...string) {
	for _, name := range chains {
		if !e.HasChain(name) {
			e.Lines, e.Chains = append(e.Lines, "-N "+name), append(e.Chains, name)
		}
	}
}

// Prepend inserts missing rules at the beginning of their chains, in the given order.
func (e *Edit) Prepend(rules ...Rule) {
	for _, r := range slices.Backward(rules) {
		if !e.Has(r) {
			e.Lines, e.Rules = append(e.Lines, "-I "+r.String()), slices.Insert(e.Rules, 0, r)
		}
	}
}

// Append appends missing rules to their chains. A chain can have 100,000 rules, so Append does not compare each pair.
func (e *Edit) Append(rules ...Rule) {
	isChanged := map[string]bool{} // by chain
	for _, r := range rules {
		isChanged[r.Chain] = true
	}
	live := ruleSet{}
	for _, r := range e.Rules {
		if isChanged[r.Chain] {
			live.add(r)
		}
	}
	for _, r := range rules {
		if !live.has(r) {
			live.add(r)
			e.Lines, e.Rules = append(e.Lines, r.Append()), append(e.Rules, r)
		}
	}
}

// Delete deletes the rules that match.
func (e *Edit) Delete(matches func(Rule) bool) {
	e.Rules = slices.DeleteFunc(e.Rules, func(r Rule) bool {
		isDeleted := matches(r)
		if isDeleted {
			e.Lines = append(e.Lines, r.Delete())
		}
		return isDeleted
	})
}

// SetRules replaces the chain's rules with these, in this order. It creates the chain if it is missing.
func (e *Edit) SetRules(chain string, rules []Rule) {
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

// Remove removes the chain with its rules. It does nothing while a rule of another chain jumps to it, so the caller
// must delete such rules first.
func (e *Edit) Remove(chain string) {
	jumps := func(r Rule) bool { return r.Chain != chain && (r.Option("-j") == chain || r.Option("-g") == chain) }
	if !e.HasChain(chain) || slices.ContainsFunc(e.Rules, jumps) {
		return
	}
	e.Lines = append(e.Lines, "-F "+chain, "-X "+chain)
	e.Chains = slices.DeleteFunc(e.Chains, func(name string) bool { return name == chain })
	e.Rules = slices.DeleteFunc(e.Rules, func(r Rule) bool { return r.Chain == chain })
}

// Edit reads a table, calls change, and applies the changes by one run of iptables-restore: all or none. It starts
// again if that fails, because other programs may have changed the same rules. Without changes, it runs nothing.
func (t Tool) Edit(ctx context.Context, table string, change func(*Edit)) error {
	return t.EditFrom(ctx, table, func() (*Edit, error) { return t.Read(ctx, table) }, change)
}

// EditFrom is Edit with a function that reads the table, or the part of it that matters, possibly without a program.
func (t Tool) EditFrom(ctx context.Context, table string, read func() (*Edit, error), change func(*Edit)) error {
	for attempt := 1; ; attempt++ {
		e, err := read()
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

// Read reads a table. If the namespace does not have a legacy table, Read returns an empty one without running a
// program, which would create the table.
func (t Tool) Read(ctx context.Context, table string) (*Edit, error) {
	read := t.list
	if t.Variant == Legacy {
		read = t.save
	}
	lines, err := read(ctx, table)
	if err != nil {
		err = t.addLacking(table, err)
		return nil, fmt.Errorf("%s %s table %q: %w", t.Variant, programName(t.Family), table, err)
	}
	return parseTable(lines), nil
}

// list reads a table through go-iptables, which runs iptables --version and iptables -S.
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
	// The library has no call that lists all chains with their rules. List runs "iptables -t TABLE -S CHAIN", and
	// without a CHAIN, -S lists the whole table. An empty CHAIN is an error, so an option takes its place that has no
	// effect on the program of its own family: --ipv4 for iptables, --ipv6 for ip6tables (see iptables(8)).
	return lib.List(table, "--ipv"+t.Family.Digit())
}

// save reads a legacy table by iptables-save, which, unlike iptables -S, does not wait for the xtables lock. A file in
// /proc lists the tables that exist. In an LXC container, that file is not readable because its owner is not mapped. In
// that case, save runs the program and treats its failure as a missing table.
func (t Tool) save(ctx context.Context, table string) ([]string, error) {
	names, err := os.ReadFile(ns.Proc() + "/net/" + t.Family.String() + "_tables_names")
	isHidden := errors.Is(err, fs.ErrPermission)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !slices.Contains(strings.Fields(string(names)), table):
		return nil, nil
	case err != nil && !isHidden:
		return nil, err
	}
	path, err := t.path(ctx, "-save")
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	err = process.Command{Path: path, Args: []string{"-t", table}, Stdout: &out}.Run(ctx)
	if isHidden && err != nil && ctx.Err() == nil {
		return nil, nil
	}
	return strings.Split(out.String(), "\n"), err
}

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

// Rule is a rule: its chain and its arguments.
type Rule struct {
	Chain string
	Args  []string
}

// NewRule returns a rule.
func NewRule(chain string, args ...string) Rule { return Rule{Chain: chain, Args: args} }

// Append returns the line that appends the rule.
func (r Rule) Append() string { return "-A " + r.String() }

// Delete returns the line that deletes the first equal rule.
func (r Rule) Delete() string { return "-D " + r.String() }

// String returns the chain and the arguments, quoted for iptables-restore.
func (r Rule) String() string {
	var b strings.Builder
	b.WriteString(quote(r.Chain))
	for _, a := range r.Args {
		b.WriteByte(' ')
		b.WriteString(quote(a))
	}
	return b.String()
}

// Option returns the argument after the named option, for example "-j", or "" without such an option. A comment or
// another value that equals an option is ignored.
func (r Rule) Option(name string) string {
	const texts = " --comment --helper --hex-string --log-prefix --nflog-prefix --string -i -o "
	for i := 0; i+1 < len(r.Args); i++ {
		if r.Args[i] == name {
			return r.Args[i+1]
		}
		if strings.Contains(texts, " "+r.Args[i]+" ") {
			i++
		}
	}
	return ""
}

// Equal reports whether two rules have the same arguments, in any order, which depends on the version of iptables.
func (r Rule) Equal(o Rule) bool {
	return r.Chain == o.Chain && len(r.Args) == len(o.Args) && r.key() == o.key()
}

// key returns a text that only equal rules have.
func (r Rule) key() string {
	return strings.Join(append([]string{r.Chain}, slices.Sorted(slices.Values(r.Args))...), "\x00")
}

// ruleSet is a set of rules, by their keys.
type ruleSet map[string]bool

func (s ruleSet) add(r Rule) { s[r.key()] = true }

func (s ruleSet) has(r Rule) bool { return s[r.key()] }

// IsOneOf returns a function that reports whether a rule equals one of the given rules.
func IsOneOf(rules []Rule) func(Rule) bool {
	s := ruleSet{}
	for _, r := range rules {
		s.add(r)
	}
	return s.has
}

// MissingInOrder returns the wanted rules that the live rules do not have in this order. Other rules may be in between.
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

// Subtract returns the rules that are not among others.
func Subtract(rules, others []Rule) (out []Rule) {
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

// split splits a line at spaces outside double quotes. A backslash escapes the next character.
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

const chainNameMax = 28 // maximum length of a chain name in iptables, in bytes

// targets lists the targets of iptables and its usual extensions. Chains cannot have these names, because a rule with
// such a name does not jump to a chain.
const targets = " ACCEPT DROP QUEUE RETURN ACCOUNT AUDIT CHAOS CHECKSUM CLASSIFY CLUSTERIP CONNMARK CONNSECMARK CT " +
	"DELUDE DHCPMAC DNAT DNETMAP DNPT DSCP ECHO ECN HL HMARK IDLETIMER IPMARK LED LOG LOGMARK MARK MASQUERADE " +
	"MIRROR NAT NETMAP NFLOG NFQUEUE NOTRACK PROTO RATEEST RAWDNAT RAWSNAT REDIRECT REJECT SAME SECMARK SET SNAT " +
	"SNPT SYNPROXY SYSRQ TARPIT TCPMSS TCPOPTSTRIP TEE TOS TPROXY TRACE TTL ULOG "

// IsChainName reports whether a name is valid for a chain, in iptables and in a line of iptables-restore.
func IsChainName(name string) bool {
	isSpecial := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'\`, r) }
	return name != "" && len(name) <= chainNameMax && !strings.ContainsAny(name[:1], "-!") &&
		!strings.ContainsFunc(name, isSpecial) && !strings.Contains(targets, " "+name+" ")
}
