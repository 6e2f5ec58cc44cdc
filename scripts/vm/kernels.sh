#!/bin/bash
# kernels.sh TEST ROW...: in the virtual machine, the specs TEST of test/kernels once for each ROW: "stock", or modules,
# separated by commas, that may not be loaded. Each cell is a line "cell", a tab, and what the specs wrote.
set -euo pipefail
test=$1
shift
export HAWSER_CELLS=/tmp/cells HAWSER_ROW HAWSER_MISSING
failed=0
barred=/etc/modprobe.d/hawser.conf
mkdir -p ${barred%/*}

# unload removes each module that nothing uses, as if the machine had just started.
unload() {
	local before
	while before=$(wc -l </proc/modules); do
		awk '$3 == 0 && $1 ~ /^(nf|nft|ip|ip6|ipt|ip6t|x|xt|ebt|br|bridge|veth|sch|act|cls|ifb|macvlan|ipvlan|8021q|dummy|vrf|netkit|stp|llc|libcrc32c)(_|t_|$|[a-z0-9]*$)/ { print $1 }' \
			/proc/modules | xargs -r -n 1 modprobe -r 2>/dev/null || true
		[ "$(wc -l </proc/modules)" -lt "$before" ] || return 0
	done
}

for HAWSER_ROW; do
	rm -f "$HAWSER_CELLS"
	HAWSER_MISSING=
	unload
	[ "$HAWSER_ROW" = stock ] || HAWSER_MISSING=${HAWSER_ROW//,/ }
	# shellcheck disable=SC2086 # words
	printf 'install %s /bin/false\n' ${HAWSER_MISSING:-none} >$barred
	for module in $HAWSER_MISSING; do
		! grep -q "^$module " /proc/modules || echo "== $HAWSER_ROW: $module is loaded: $(grep "^$module " /proc/modules)"
	done
	out=$(cd test/kernels && "$test" -ginkgo.no-color -ginkgo.succinct 2>&1) || { failed=1; printf '== %s failed\n%s\n' "$HAWSER_ROW" "$out"; }
	sed 's/^/cell\t/' "$HAWSER_CELLS"
done
exit $failed
