package ipt

import (
	"slices"
	"strings"
	"testing"
)

// ParseRules reads the rules among the lines that a program prints.
func ParseRules(lines []string) []Rule { return parseTable(lines).Rules }

// FuzzRule parses any text as output of iptables, and writes the rules as lines for
// iptables-restore, which must parse as the same rules.
func FuzzRule(f *testing.F) {
	f.Add(
		`-A POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"net\" id: \"1\"" -j CNI-2bbe0c48b91a7d1b8a6753a8`)
	f.Add("-A \"a b\" \\\t\"\" \\\"\n-P INPUT ACCEPT\n-A x")
	f.Add("-A x \"unfinished")
	f.Fuzz(func(t *testing.T, out string) {
		for _, r := range ParseRules(strings.Split(out, "\n")) {
			for _, line := range []string{r.Append(), r.Delete()} {
				if strings.ContainsRune(line, '\n') {
					t.Fatalf("%q: %q", out, line)
				}
			}
			again := ParseRules([]string{r.Append()})
			if len(again) != 1 || again[0].Chain != r.Chain || !slices.Equal(again[0].Args, r.Args) ||
				!again[0].Equal(r) {
				t.Fatalf("%q: %q, %q", out, r, again)
			}
			r.Option("-j")
		}
	})
}
