package ipt

import "strings"

// chainNameMax is the longest name of a chain that iptables takes, in bytes.
const chainNameMax = 28

// IsChainName says whether iptables takes the name for a chain, and iptables-restore a line with it.
func IsChainName(name string) bool {
	notPlain := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'\`, r) }
	return name != "" && len(name) <= chainNameMax && !strings.ContainsAny(name[:1], "-!") &&
		!strings.ContainsFunc(name, notPlain)
}
