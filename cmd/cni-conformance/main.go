// Command cni-conformance tests a CNI plugin against the CNI specification.
package main

import "github.com/hawser-cni/plugins/cmd/cni-conformance/conformance"

func main() { conformance.Main() }
