package ipt

// ParseRules is what List makes of a program's output.
var ParseRules = parseRules
