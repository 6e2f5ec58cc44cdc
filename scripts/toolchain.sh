# toolchain.sh: puts the Go that go.mod's toolchain line names first into PATH: sourced at the top of the tree. Go
# downloads it through the module proxy. A Go configured with GOTOOLCHAIN=local would ignore that line; GOTOOLCHAIN in
# the environment overrides both.
# shellcheck shell=bash
go_root=$(GOTOOLCHAIN=${GOTOOLCHAIN:-auto} scripts/retry.sh go env GOROOT)
export PATH=$go_root/bin:$PATH GOTOOLCHAIN=local
