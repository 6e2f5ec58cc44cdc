package ipt

import (
	"slices"
	"strings"
)

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

// Lacking returns those of the wanted rules that the live ones do not have in this order. Others may stand between.
func Lacking(live, want []Rule) (out []Rule) {
	for _, w := range want {
		if i := slices.IndexFunc(live, w.Equal); i >= 0 {
			live = live[i+1:]
		} else {
			out = append(out, w)
		}
	}
	return out
}

// Without returns those of the rules that the others do not have anywhere.
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
func split(line string) []string {
	var out []string
	var word strings.Builder
	inWord, quoted, escaped := false, false, false
	for _, c := range []byte(line) {
		switch {
		case escaped:
			word.WriteByte(c)
			escaped = false
		case c == '\\':
			escaped, inWord = true, true
		case c == '"':
			quoted, inWord = !quoted, true
		case c == ' ' && !quoted:
			if inWord {
				out = append(out, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		out = append(out, word.String())
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
