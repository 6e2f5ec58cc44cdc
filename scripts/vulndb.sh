#!/bin/bash
# vulndb.sh DIR: writes Go's database of vulnerabilities into DIR, for machines that reach a module proxy but not
# vuln.go.dev, from the newest version of the module golang.org/x/vulndb. Prints that version, whose date is the last day
# of the reports.
set -euo pipefail
cd "$(dirname "$0")/bom"
export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
module=$(go mod download -json golang.org/x/vulndb@latest)
go run ./vulndb "$(sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p' <<<"$module")" "$1"
sed -n 's/^\t"Version": "\(.*\)",*$/\1/p' <<<"$module"
