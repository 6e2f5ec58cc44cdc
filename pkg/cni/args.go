package cni

import (
	"slices"
	"strconv"
	"strings"
)

// ParseArgs reads CNI_ARGS, "KEY=value" pairs separated by semicolons
// (specification, section 2), and returns the values of the known keys.
// Keys match without regard to case and empty pairs are skipped. A pair
// without "=", and any other key unless the arguments say IgnoreUnknown=1 or
// IgnoreUnknown=true, is an error with code 4 that names the key but not its
// value, which may be secret.
func ParseArgs(args string, known ...string) (map[string]string, error) {
	values := map[string]string{}
	var unknown []string
	ignore := ""
	for n, pair := range strings.Split(args, ";") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		if !ok || key == "" {
			return nil, Errorf(CodeEnvironment, "CNI_ARGS: pair %d is not KEY=value", n+1)
		}
		i := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, key) })
		switch {
		case strings.EqualFold(key, "IgnoreUnknown"):
			ignore = strings.ToLower(value)
		case i >= 0:
			values[known[i]] = value
		case strings.ContainsFunc(key, notPrintable):
			unknown = append(unknown, strconv.Quote(key))
		default:
			unknown = append(unknown, key)
		}
	}
	switch ignore {
	case "1", "true":
		unknown = nil
	case "", "0", "false":
	default:
		return nil, Errorf(CodeEnvironment, "CNI_ARGS: IgnoreUnknown is not 0, 1, true or false")
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, Errorf(CodeEnvironment, "CNI_ARGS: unknown keys %s (known: %s; IgnoreUnknown=1 accepts any)",
			strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return values, nil
}
