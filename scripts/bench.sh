#!/bin/bash
# bench.sh [PACKAGE...]: the Go benchmarks of the root module, five times each, on
# whatever else the machine is doing: compare runs of one machine only.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- ./...
go test -run '^$' -bench . -benchmem -count 5 "$@"
