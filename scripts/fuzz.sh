#!/bin/bash
# fuzz.sh: runs each fuzz target. go writes a failing input to testdata/fuzz next to the target: commit it with the fix.
#
# Environment:
#   FUZZTIME  time for each target (30s)
#   FUZZJOBS  number of targets in parallel (twice the processors plus one, because targets also wait for the kernel)
set -euo pipefail
cd "$(dirname "$0")/.."

CGO_ENABLED=0 GOFLAGS=$(scripts/flags.sh | paste -sd ' ') # as test.sh
export CGO_ENABLED GOFLAGS
fuzz() {
	cd "$1" && go test -run '^$' -fuzz "^$2\$" -fuzztime "${FUZZTIME:-30s}" -fuzzminimizetime 10x -parallel 1 . 2>&1 </dev/null
}

run() {
	local out
	# go sometimes fails without a failing input, for example if the time ends during a run. Try once more.
	if out=$(fuzz "$@") || { ! grep -q 'Failing input written' <<<"$out" && out=$(fuzz "$@"); }; then
		echo "$1 $2: $(grep -oE 'execs: [0-9]+' <<<"$out" | tail -1)"
	else
		printf '== FAILED: %s %s\n%s\n' "$1" "$2" "$out"
		return 1
	fi
}
export -f run fuzz

grep -rE '^func Fuzz[A-Z]\w*\(f \*testing\.F\)' --include='*_test.go' . | sort |
	sed -nE 's|^\./(.*)/[^/]*:func (Fuzz\w+).*|\1 \2|p' |
	xargs -P "${FUZZJOBS:-$((2 * $(nproc) + 1))}" -L 1 bash -c 'run "$@"' run
