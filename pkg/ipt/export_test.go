package ipt

// ParseRules is what List makes of the lines that a program prints.
var ParseRules = parseRules
