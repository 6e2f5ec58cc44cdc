package main

import "github.com/hawser-cni/plugins/pkg/skel"

// wireConfig is the configuration as written: loopback has no keys of its
// own.
type wireConfig struct{ skel.LogKey }
