#!/bin/bash
# test.sh [DIR...]: runs all specs, or those of the packages in these directories. Specs whose requirements this machine
# lacks skip. The end of the output lists skipped specs with reasons, and failures. The user's cache keeps the test
# programs (800 MB).
#
# Environment:
#   HAWSER_BIN        directory of the plugins (bin/)
#   NSTEST_QUICK=1    omit specs labelled "slow", specs with the release before the newest of the reference and, without
#                     DIR, the suites in slow below; make test sets it
#   NSTEST_REQUIRE=1  let only specs labelled "kernel" skip
#   NSTEST_SKIPLOG    file to which skipped specs are written; test-vm.sh reads it
#   NSTEST_JOBS       number of packages that run in parallel (three for each processor)
#   TESTFLAGS         flags for the test programs, for example -test.v
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

# Same flags as the plugins, to share the build cache. make lint runs go vet. Without symbols, linking takes half the
# time.
export CGO_ENABLED=0
flags="$(scripts/flags.sh | paste -sd ' ') -ldflags=-s"
# ginkgo uses colors even if stdout is not a terminal.
[ -t 1 ] || export GINKGO_NO_COLOR=TRUE
failed=0
# Suites that cover no promise, or only promises that other suites cover; contract_test.go reads the next line.
slow=(test/bench)
packages=()
if [ $# != 0 ]; then
	dirs=$(realpath -e "$@")
	while read -r dir; do
		if compgen -G "$dir/*_test.go" >/dev/null; then packages+=("$dir"); else echo "== no tests: $dir"; fi
	done <<<"$dirs"
	[ ${#packages[@]} != 0 ] || exit 0
fi
[ $# != 0 ] || for module in . test; do
	mapfile -t -O ${#packages[@]} packages < <(cd "$module" &&
		go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...)
done
[ $# != 0 ] || [ -z "${NSTEST_QUICK:-}" ] ||
	mapfile -t packages < <(printf '%s\n' "${packages[@]}" | grep -vxFf <(printf "$PWD/%s\n" "${slow[@]}"))

# binary DIR prints the path of the package's test program. Packages in one directory of the cache have different names.
binary() {
	case $1 in
	"$PWD") echo root/plugins.test ;;
	"$PWD"/test/*) echo "test/${1##*/}.test" ;;
	*) echo "plugins/${1##*/}.test" ;;
	esac
}

# compile CACHE-DIR MODULE PATTERN [EXCEPT] compiles the test programs of the packages that match PATTERN and not
# EXCEPT. go links only programs that changed since the last run, which saves most of the time. The caller holds a lock
# against runs from other trees.
compile() {
	local inside
	mapfile -t inside < <(printf '%s\n' "${packages[@]}" | grep "$3" | grep -v "${4:-^$}")
	[ ${#inside[@]} -gt 0 ] || return 0
	mkdir -p "$cache/$1" "$tmp/$1"
	# shellcheck disable=SC2086 # a list
	go test -C "$2" -c -vet=off $flags -o "$cache/$1/" "${inside[@]}"
	for package in "${inside[@]}"; do ln "$cache/$(binary "$package")" "$tmp/$1/"; done
}
echo "== go test -c"
{
	flock 9
	compile root . "^$PWD$"
	compile test test "^$PWD/test/"
	compile plugins . "^$PWD/" "^$PWD/test/"
} 9>"$cache/.lock"

# run_package DIR runs the test program of a package.
run_package() {
	local began=${EPOCHREALTIME/[.,]/} out program rc=0
	program=$tmp/$(binary "$1")
	# shellcheck disable=SC2086 # a list
	out=$(cd "$1" && "$program" -test.paniconexit0 -test.timeout=45m ${TESTFLAGS:-} 2>&1 </dev/null) || rc=$?
	[ $rc = 0 ] && [ -z "${TESTFLAGS:-}" ] || printf '%s\n' "$out"
	[ $rc = 0 ] || printf '%s\n' "$out" | tail -n 100 >>"$failures"
	printf '%s\t%s\t%d s\n' "$([ $rc = 0 ] && echo ok || echo FAIL)" ".${1#"$PWD"}" \
		$(((${EPOCHREALTIME/[.,]/} - began) / 1000000))
	return $rc
}
export -f binary run_package
# The slowest packages start first, so that shorter ones fill the processors at the end. Three packages run for each
# processor, because specs mostly wait for the kernel.
echo "== go test"
# shellcheck disable=SC2016 # expanded by the inner bash
{
	printf "$PWD/%s\n" test/tool plugins/ipam/dhcp/dhcp plugins/meta/{firewall/firewall,portmap/portmap} \
		test/{lifecycle,conformance,faults} plugins/main/bridge/bridge test/{load,install,attack,clients} \
		plugins/meta/bandwidth/bandwidth plugins/main/{host-device/hostdevice,macvlan/macvlan,ptp/ptp} test/{docs,cost} \
		plugins/ipam/host-local/hostlocal | grep -xFf <(printf '%s\n' "${packages[@]}") || true
	printf '%s\n' "${packages[@]}"
} | awk '!seen[$0]++' |
	xargs -d '\n' -n 1 -P "${NSTEST_JOBS:-$((3 * $(nproc)))}" bash -c 'run_package "$1"' test || failed=1

if [ -s "$NSTEST_SKIPLOG" ]; then
	echo "== skipped: $(wc -l <"$NSTEST_SKIPLOG") (specs labelled kernel: make test-vm runs them)"
	sort -u "$NSTEST_SKIPLOG" | awk -F'\t' '{ sub(/.*\//, "", $1); sub(/\.test$/, "", $1)
		print "  " $1 ": " $2; print "      " $3 }'
else
	echo "== skipped: nothing"
fi
if [ $failed != 0 ]; then
	echo "== FAILED; the output of failed packages:"
	if [ -s "$failures" ]; then cat "$failures"; fi
	exit 1
fi
echo "== passed"
