#!/bin/bash
# specs.sh DIR LABELS [COMMAND...]: runs COMMAND, then the test programs DIR/NAME.test, two in parallel, in the virtual
# machine. Each program runs in the directory named in DIR/NAME.dir, with ginkgo's label filter LABELS and the focus in
# DIR/NAME.focus.
set -euo pipefail

run_package() {
	cd "$(<"${1%.test}.dir")"
	rc=0
	output=$("$1" -test.timeout 45m -ginkgo.label-filter "$labels" \
		-ginkgo.focus "$(<"${1%.test}.focus")" -ginkgo.no-color -ginkgo.succinct 2>&1) || rc=$?
	printf '== %s: exit %s\n%s\n' "$PWD" "$rc" "$output"
	return $rc
}
export -f run_package
export labels=$2
echo "== kernel $(uname -r)"
failed=0
[ $# = 2 ] || "${@:3}" || failed=1
# shellcheck disable=SC2016 # expanded by the inner bash
printf '%s\0' "$1"/*.test | xargs -0 -n 1 -P 2 bash -c 'run_package "$1"' specs || failed=1
[ $failed = 0 ]
