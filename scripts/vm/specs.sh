#!/bin/bash
# specs.sh DIR: in the virtual machine, the specs labelled "kernel" of every DIR/*.test,
# each in the directory named by DIR/*.dir, those that DIR/*.focus matches, two packages
# at a time.
set -euo pipefail

one() {
	cd "$(<"${1%.test}.dir")"
	rc=0
	output=$("$1" -test.timeout 10m -ginkgo.label-filter kernel -ginkgo.focus "$(<"${1%.test}.focus")" -ginkgo.no-color -ginkgo.succinct 2>&1) || rc=$?
	printf '== %s: exit %s\n%s\n' "$PWD" "$rc" "$output"
	return $rc
}
export -f one
echo "== kernel $(uname -r)"
failed=0
"$(dirname "$0")/hardware.sh" "$HAWSER_BIN" || failed=1
# shellcheck disable=SC2016 # expanded by the inner bash
printf '%s\0' "$1"/*.test | xargs -0 -n 1 -P 2 bash -c 'one "$1"' specs || failed=1
[ $failed = 0 ]
