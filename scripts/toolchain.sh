# toolchain.sh: prepends the Go version of go.mod's toolchain line to PATH. Source it in the top directory. go downloads
# the version through the module proxy, even if "go env" has GOTOOLCHAIN=local, which would ignore the line. GOTOOLCHAIN
# in the environment takes precedence.
# shellcheck shell=bash
go_root=$(GOTOOLCHAIN=${GOTOOLCHAIN:-auto} scripts/retry.sh go env GOROOT)
export PATH=$go_root/bin:$PATH GOTOOLCHAIN=local
