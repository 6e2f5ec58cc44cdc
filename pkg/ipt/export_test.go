package ipt

// ParseRules reads the rules among the lines that a program prints.
func ParseRules(lines []string) []Rule { return parseTable(lines).Rules }
