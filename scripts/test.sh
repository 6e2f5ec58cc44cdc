#!/bin/bash
# test.sh: everything that this machine can run. At the end: what was skipped, why.
# NSTEST_REQUIRE=1 lets only specs labelled "kernel" skip; TESTFLAGS go to go test;
# NSTEST_SKIPLOG is a file for what was skipped, which test-vm.sh reads.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh
scripts/reference.sh >/dev/null
scripts/build.sh
export HAWSER_BIN=$PWD/bin
[ -n "${NSTEST_SKIPLOG:-}" ] || { NSTEST_SKIPLOG=$(mktemp); trap 'rm -f "$NSTEST_SKIPLOG"' EXIT; }
export NSTEST_SKIPLOG

# ginkgo does not look whether it writes to a terminal.
[ -t 1 ] || export GINKGO_NO_COLOR=TRUE
failed=0
read -ra flags <<<"${TESTFLAGS:-}"
for module in . test test/bench; do
	[ -f "$module/go.mod" ] || continue
	echo "== go vet, go test in $module"
	# -count=1: the result depends on the kernel, which go does not know. -p: specs
	# wait for the kernel more than they compute.
	(cd "$module" && go vet ./...) || failed=1
	(cd "$module" && go test -count=1 -p $(($(nproc) + 1)) -timeout 15m "${flags[@]}" ./...) || failed=1
done

if [ -s "$NSTEST_SKIPLOG" ]; then
	echo "== skipped: $(wc -l <"$NSTEST_SKIPLOG") (specs labelled kernel: make test-vm runs them)"
	sort -u "$NSTEST_SKIPLOG" | awk -F'\t' '{ sub(/.*\//, "", $1); sub(/\.test$/, "", $1)
		print "  " $1 ": " $2; print "      " $3 }'
else
	echo "== skipped: nothing"
fi
[ $failed = 0 ] || { echo "== FAILED"; exit 1; }
echo "== passed"
