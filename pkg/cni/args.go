package cni

import (
	"sort"
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
		switch name := matchKey(key, known); {
		case strings.EqualFold(key, "IgnoreUnknown"):
			ignore = value
		case name != "":
			values[name] = value
		case strings.ContainsFunc(key, notPrintable):
			unknown = append(unknown, strconv.Quote(key))
		default:
			unknown = append(unknown, key)
		}
	}
	ignoreUnknown, err := parseIgnore(ignore)
	if err != nil {
		return nil, err
	}
	if len(unknown) > 0 && !ignoreUnknown {
		sort.Strings(unknown)
		return nil, Errorf(CodeEnvironment, "CNI_ARGS: unknown keys %s (known: %s; IgnoreUnknown=1 accepts any)",
			strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return values, nil
}

func matchKey(key string, known []string) string {
	for _, k := range known {
		if strings.EqualFold(k, key) {
			return k
		}
	}
	return ""
}

func parseIgnore(value string) (bool, error) {
	switch strings.ToLower(value) {
	case "1", "true":
		return true, nil
	case "", "0", "false":
		return false, nil
	}
	return false, Errorf(CodeEnvironment, "CNI_ARGS: IgnoreUnknown is not 0, 1, true or false")
}
