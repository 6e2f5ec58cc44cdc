#!/bin/bash
# reliability.sh: runs all cases of which make test-all runs samples, and prints the figures: every kill and error in
# every scenario, load, many containers, random plugin lists, and 50 losses of power. Needs root, and takes hours.
#
# Environment:
#   HAWSER_LOAD    duration of the load (1m)
#   HAWSER_PODS    number of containers (100000)
#   HAWSER_CHAINS  number of random plugin lists (300)
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
	go test -count=1 -timeout 8h "./$package" -ginkgo.timeout 8h -ginkgo.seed "$RANDOM" -ginkgo.v -ginkgo.no-color -v \
		>"$log" 2>&1 || { failed=1; cat "$log"; }
	echo "== $package"
	# Keep the reports of specs: lines with a seed, and lines about memory.
	sed -nE 's/ - \/.*//; /seed [0-9]|^ *KiB|^Ran /p' "$log"
done
../scripts/vm/power.sh 50 || failed=1
exit $failed
