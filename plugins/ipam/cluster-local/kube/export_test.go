package kube

// OpenOnce is Open that does not try again.
var OpenOnce = open
