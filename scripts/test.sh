#!/bin/bash
# test.sh [DIR...]: all specs that this machine can run, or the packages in these directories. The end of the output
# lists what was skipped, why, and what failed. HAWSER_BIN is a directory with the plugins (bin/, where they are built).
# NSTEST_QUICK=1 leaves out the specs labelled "slow" and, without DIR, the suites of slow below: make test sets it.
# Without it, specs also run next to the release before the newest of the reference.
# NSTEST_REQUIRE=1 lets only specs labelled "kernel" skip; TESTFLAGS go to go test;
# NSTEST_SKIPLOG is a file for what was skipped, which test-vm.sh reads.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh
scripts/reference.sh >/dev/null
if [ -z "${NSTEST_QUICK:-}" ]; then
	scripts/reference.sh before >/dev/null
	export NSTEST_BEFORE=1
fi
scripts/modules.sh . test
scripts/build.sh
export HAWSER_BIN=${HAWSER_BIN:-$PWD/bin}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export NSTEST_SKIPLOG=${NSTEST_SKIPLOG:-$tmp/skipped} failures=$tmp/failures
touch "$NSTEST_SKIPLOG"

# Compiled as the programs are, and with them; make lint vets. Without symbols the linker takes half of the time.
export CGO_ENABLED=0
TESTFLAGS="$(scripts/flags.sh | paste -sd ' ') -vet=off -ldflags=-s ${TESTFLAGS:-}"
export TESTFLAGS
# ginkgo does not look whether it writes to a terminal.
[ -t 1 ] || export GINKGO_NO_COLOR=TRUE
failed=0
# Suites whose promises other suites also keep, or that keep none; contract_test.go reads this line.
slow=(test/bench)
packages=("${@/#/$PWD/}")
[ $# = 0 ] && for module in . test; do
	mapfile -t -O ${#packages[@]} packages < <(cd "$module" &&
		go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...)
done
[ $# != 0 ] || [ -z "${NSTEST_QUICK:-}" ] ||
	mapfile -t packages < <(printf '%s\n' "${packages[@]}" | grep -vxFf <(printf "$PWD/%s\n" "${slow[@]}"))

# One package at a time in each process. -count=1: the result depends on the kernel, which go
# does not know.
package() {
	local out flags rc=0
	read -ra flags <<<"${TESTFLAGS:-}"
	out=$(cd "$1" && go test -count=1 -timeout 45m "${flags[@]}" . 2>&1 </dev/null) || rc=$?
	printf '%s\n' "$out"
	[ $rc = 0 ] || printf '%s\n' "$out" | tail -n 100 >>"$failures"
	return $rc
}
export -f package
# The longest packages begin first; the others fill what is left. Three processes for each processor: specs wait for the
# kernel more than they compute.
echo "== go test"
# shellcheck disable=SC2016 # expanded by the inner bash
{
	printf "$PWD/%s\n" plugins/meta/{portmap/portmap,firewall/firewall} \
		test/{faults,tool,clients,conformance,load,lifecycle,install} plugins/main/{bridge/bridge,macvlan/macvlan,ptp/ptp} \
		test/{attack,docs,cost} plugins/ipam/dhcp/dhcp | grep -xFf <(printf '%s\n' "${packages[@]}") || true
	printf '%s\n' "${packages[@]}"
} | awk '!seen[$0]++' | xargs -d '\n' -n 1 -P $((3 * $(nproc))) bash -c 'package "$1"' test || failed=1

if [ -s "$NSTEST_SKIPLOG" ]; then
	echo "== skipped: $(wc -l <"$NSTEST_SKIPLOG") (specs labelled kernel: make test-vm runs them)"
	sort -u "$NSTEST_SKIPLOG" | awk -F'\t' '{ sub(/.*\//, "", $1); sub(/\.test$/, "", $1)
		print "  " $1 ": " $2; print "      " $3 }'
else
	echo "== skipped: nothing"
fi
if [ $failed != 0 ]; then
	echo "== FAILED; the packages that did, once more:"
	if [ -s "$failures" ]; then cat "$failures"; fi
	exit 1
fi
echo "== passed"
