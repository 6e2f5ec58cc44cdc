package nstest

// Disinherit gives a network namespace the kernel's settings, as each new one gets them.
var Disinherit = disinherit
