#!/bin/bash
# vulndb.sh DIR: writes Go's vulnerability database to DIR and prints its version, which contains the date of the newest
# report. The source is the module golang.org/x/vulndb, for machines that reach a module proxy but not vuln.go.dev.
set -euo pipefail
cd "$(dirname "$0")/bom"
export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
module=$(go mod download -json golang.org/x/vulndb@latest)
go run ./vulndb "$(sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p' <<<"$module")" "$1"
sed -n 's/^\t"Version": "\(.*\)",*$/\1/p' <<<"$module"
