#!/bin/bash
# test.sh [DIR...]: all specs that this machine can run, or the packages in these directories. The end of the output
# lists what was skipped, why, and what failed. HAWSER_BIN is a directory with the plugins (bin/, where they are built).
# NSTEST_QUICK=1 leaves out the specs labelled "slow" and, without DIR, the suites of slow below: make test sets it.
# Without it, specs also run next to the release before the newest of the reference.
# NSTEST_REQUIRE=1 lets only specs labelled "kernel" skip; TESTFLAGS go to the test programs (-test.v);
# NSTEST_SKIPLOG is a file for what was skipped, which test-vm.sh reads. NSTEST_JOBS is the number of packages that run
# at the same time. The user's cache keeps the test programs, 800 MB.
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
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hawser/tests
mkdir -p "$cache"
tmp=$(mktemp -d "$cache/.run.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
export cache tmp NSTEST_SKIPLOG=${NSTEST_SKIPLOG:-$tmp/skipped} failures=$tmp/failures
touch "$NSTEST_SKIPLOG"

# Compiled as the programs are, and with them; make lint vets. Without symbols the linker takes half of the time.
export CGO_ENABLED=0
flags="$(scripts/flags.sh | paste -sd ' ') -ldflags=-s"
# ginkgo does not look whether it writes to a terminal.
[ -t 1 ] || export GINKGO_NO_COLOR=TRUE
failed=0
# Suites whose promises other suites also keep, or that keep none; contract_test.go reads this line.
slow=(test/bench)
packages=()
[ $# = 0 ] || mapfile -t packages < <(realpath "$@")
[ $# != 0 ] || for module in . test; do
	mapfile -t -O ${#packages[@]} packages < <(cd "$module" &&
		go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...)
done
[ $# != 0 ] || [ -z "${NSTEST_QUICK:-}" ] ||
	mapfile -t packages < <(printf '%s\n' "${packages[@]}" | grep -vxFf <(printf "$PWD/%s\n" "${slow[@]}"))

# compiled prints where the test program of a package is: below a directory for those whose names differ.
compiled() {
	case $1 in
	"$PWD") echo root/plugins.test ;;
	"$PWD"/test/*) echo "test/${1##*/}.test" ;;
	*) echo "plugins/${1##*/}.test" ;;
	esac
}

# compile compiles the packages of a directory of compiled. go links only those that changed since the last run: linking
# takes most of the time. The lock is for runs of other trees.
compile() {
	local inside
	mapfile -t inside < <(printf '%s\n' "${packages[@]}" | grep "$3" | grep -v "${4:-^$}")
	[ ${#inside[@]} -gt 0 ] || return 0
	mkdir -p "$cache/$1" "$tmp/$1"
	# shellcheck disable=SC2086 # a list
	go test -C "$2" -c -vet=off $flags -o "$cache/$1/" "${inside[@]}"
	for package in "${inside[@]}"; do ln "$cache/$(compiled "$package")" "$tmp/$1/"; done
}
echo "== go test -c"
{
	flock 9
	compile root . "^$PWD$"
	compile test test "^$PWD/test/"
	compile plugins . "^$PWD/" "^$PWD/test/"
} 9>"$cache/.lock"

# One package at a time in each process.
package() {
	local began=${EPOCHREALTIME/[.,]/} out program rc=0
	program=$tmp/$(compiled "$1")
	# shellcheck disable=SC2086 # a list
	out=$(cd "$1" && "$program" -test.paniconexit0 -test.timeout=45m ${TESTFLAGS:-} 2>&1 </dev/null) || rc=$?
	[ $rc = 0 ] && [ -z "${TESTFLAGS:-}" ] || printf '%s\n' "$out"
	[ $rc = 0 ] || printf '%s\n' "$out" | tail -n 100 >>"$failures"
	printf '%s\t%s\t%d s\n' "$([ $rc = 0 ] && echo ok || echo FAIL)" ".${1#"$PWD"}" \
		$(((${EPOCHREALTIME/[.,]/} - began) / 1000000))
	return $rc
}
export -f compiled package
# The longest packages begin first, because of what they compute or wait for; the others fill what is left. Three
# processes for each processor: specs wait for the kernel more than they compute.
echo "== go test"
# shellcheck disable=SC2016 # expanded by the inner bash
{
	printf "$PWD/%s\n" test/tool plugins/ipam/dhcp/dhcp plugins/meta/{firewall/firewall,portmap/portmap} \
		test/{lifecycle,conformance,faults} plugins/main/bridge/bridge test/{load,install,attack,clients} \
		plugins/meta/bandwidth/bandwidth plugins/main/{host-device/hostdevice,macvlan/macvlan,ptp/ptp} test/{docs,cost} \
		plugins/ipam/host-local/hostlocal | grep -xFf <(printf '%s\n' "${packages[@]}") || true
	printf '%s\n' "${packages[@]}"
} | awk '!seen[$0]++' | xargs -d '\n' -n 1 -P "${NSTEST_JOBS:-$((3 * $(nproc)))}" bash -c 'package "$1"' test || failed=1

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
