package main

// wireConfig is the configuration as written: loopback has no keys of its
// own.
type wireConfig struct{}
