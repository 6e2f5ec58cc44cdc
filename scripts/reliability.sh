#!/bin/bash
# reliability.sh: all cases of which make test-all takes samples: every kill and every error of
# every scenario, a minute of load, 100,000 containers, 300 chains, and 50 losses of power; prints the figures. Some hours.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh
scripts/reference.sh >/dev/null
scripts/build.sh
export HAWSER_BIN=$PWD/bin HAWSER_FAULTS=all HAWSER_LOAD=${HAWSER_LOAD:-1m} HAWSER_CHAINS=${HAWSER_CHAINS:-300} \
	HAWSER_PODS=${HAWSER_PODS:-100000}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
cd test
for package in faults load lifecycle install; do
	go test -count=1 -timeout 8h "./$package" -ginkgo.timeout 8h -ginkgo.seed "$RANDOM" -ginkgo.v -ginkgo.no-color -v >"$log" 2>&1 || { failed=1; cat "$log"; }
	echo "== $package"
	# What the specs report: a line with a seed, and those about the programs' memory.
	sed -nE 's/ - \/.*//; /seed [0-9]|^ *KiB|^Ran /p' "$log"
done
../scripts/vm/power.sh 50 || failed=1
exit $failed
