#!/bin/bash
# fuzz.sh: each fuzz target for FUZZTIME (default 30s), FUZZJOBS of them at a time
# (twice as many as processors, and one: they wait for the kernel, too). What fails is written to
# testdata/fuzz beside the target: commit it together with what cures it.
set -euo pipefail
cd "$(dirname "$0")/.."

CGO_ENABLED=0 GOFLAGS=$(scripts/flags.sh | paste -sd ' ') # as test.sh
export CGO_ENABLED GOFLAGS
target() {
	cd "$1" && go test -run '^$' -fuzz "^$2\$" -fuzztime "${FUZZTIME:-30s}" -fuzzminimizetime 10x -parallel 1 . 2>&1 </dev/null
}

run() {
	local out
	# One that fails without an input to show, as when its time is over in the middle of something, is run again.
	if out=$(target "$@") || { ! grep -q 'Failing input written' <<<"$out" && out=$(target "$@"); }; then
		echo "$1 $2: $(grep -oE 'execs: [0-9]+' <<<"$out" | tail -1)"
	else
		printf '== FAILED: %s %s\n%s\n' "$1" "$2" "$out"
		return 1
	fi
}
export -f run target

grep -rE '^func Fuzz[A-Z]\w*\(f \*testing\.F\)' --include='*_test.go' . | sort |
	sed -nE 's|^\./(.*)/[^/]*:func (Fuzz\w+).*|\1 \2|p' |
	xargs -P "${FUZZJOBS:-$((2 * $(nproc) + 1))}" -L 1 bash -c 'run "$@"' run
