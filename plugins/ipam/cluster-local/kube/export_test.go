package kube

// OpenOnce is Open without retries.
var OpenOnce = newClient
