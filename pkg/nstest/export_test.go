package nstest

// Disinherit is what a new namespace begins with.
var Disinherit = disinherit
