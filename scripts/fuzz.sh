#!/bin/bash
# fuzz.sh: each fuzz target in turn for FUZZTIME (default 30s).
set -euo pipefail
cd "$(dirname "$0")/.."

grep -rlE '^func Fuzz[A-Z]' --include='*_test.go' . | sort | while read -r file; do
	sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' "$file" | while read -r target; do
		echo "== ${file#./} $target"
		(cd "$(dirname "$file")" &&
			go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" . </dev/null)
	done
done
