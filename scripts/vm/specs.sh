#!/bin/bash
# specs.sh DIR LABELS [COMMAND...]: in the virtual machine, COMMAND; then the specs of every
# DIR/*.test that ginkgo's filter LABELS and DIR/*.focus match, each in the directory named by
# DIR/*.dir, two packages at a time.
set -euo pipefail

one() {
	cd "$(<"${1%.test}.dir")"
	rc=0
	output=$("$1" -test.timeout 45m -ginkgo.label-filter "$labels" \
		-ginkgo.focus "$(<"${1%.test}.focus")" -ginkgo.no-color -ginkgo.succinct 2>&1) || rc=$?
	printf '== %s: exit %s\n%s\n' "$PWD" "$rc" "$output"
	return $rc
}
export -f one
export labels=$2
echo "== kernel $(uname -r)"
failed=0
[ $# = 2 ] || "${@:3}" || failed=1
# shellcheck disable=SC2016 # expanded by the inner bash
printf '%s\0' "$1"/*.test | xargs -0 -n 1 -P 2 bash -c 'one "$1"' specs || failed=1
[ $failed = 0 ]
