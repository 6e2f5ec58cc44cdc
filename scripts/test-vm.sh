#!/bin/bash
# test-vm.sh: the specs labelled "kernel" on Debian's kernel in a virtual machine,
# where none of them may skip, and those labelled "netkit" too on the kernel of a newer
# release, which has that; with NSTEST_SKIPLOG, a log that test.sh wrote, those
# that skipped there; and a node there that loses its power. test-vm.sh COMMAND [ARG...] runs that there instead.
# With KERNEL=5.10, 6.1 or 6.12 it tries each feature there, on the machine as it is or for each of ROWS
# (scripts/vm/kernels.sh), and writes docs/kernels and docs/kernels.md; in CI it compares them, and writes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -eq 0 ] || exec scripts/vm/run.sh "$@"
scripts/deps.sh
scripts/reference.sh >/dev/null
scripts/build.sh
CGO_ENABLED=0 GOFLAGS=$(scripts/flags.sh | paste -sd ' ') # as test.sh
export CGO_ENABLED GOFLAGS
log=${NSTEST_SKIPLOG:-}
unset NSTEST_SKIPLOG
if [ -n "${KERNEL:-}" ]; then
	case $KERNEL in
	5.10) suite=bullseye ;;
	6.1) suite=bookworm ;;
	6.12) suite=trixie ;;
	*) echo "test-vm: KERNEL is 5.10, 6.1 or 6.12" >&2; exit 2 ;;
	esac
	! grep -q "^VERSION_CODENAME=$suite$" /etc/os-release || suite= # the kernel is there for the other specs, too
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir -p docs/kernels
	(cd test/kernels && CGO_ENABLED=0 go test -c -o "$work/kernels.test" .)
	# One spec runs after the other, so a second processor would be of no use.
	export HAWSER_BIN=$PWD/bin/one NSTEST_REQUIRE=all NSTEST_SLOWNESS=3
	export VM_CPUS=1 VM_SUITE=$suite VM_TIMEOUT=${VM_TIMEOUT:-7200}
	read -ra rows <<<"${ROWS:-stock}"
	rc=0
	# A busy machine disturbs the guest's calibration of the TSC, and the guest's clock then runs many times too fast.
	boot() {
		[ $# = 0 ] || VM_APPEND="clocksource=hpet ${VM_APPEND:-}" scripts/vm/run.sh scripts/vm/kernels.sh \
			"$work/kernels.test" "$@" >>"$work/out" || rc=1
	}
	own=() # a parameter of the kernel has a boot of its own
	for row in "${rows[@]}"; do
		case $row in *=*) VM_APPEND=${row##*,} boot "$row" ;; *) own+=("$row") ;; esac
	done
	boot "${own[@]}"
	grep -vE $'^(cell|kernel)\t' "$work/out" || true
	for row in "${rows[@]}"; do
		{
			sed -n $'s/^kernel\t/# /p;T;q' "$work/out"
			awk -F'\t' -v row="$row" '$1 == "cell" && $2 == row { print $3 "\t" $4 }' "$work/out"
		} >"$work/cells"
		count=$(grep -vc '^# ' "$work/cells") || continue
		file=docs/kernels/$KERNEL-$row.txt
		echo "== $file: $(grep -v '^# ' "$work/cells" | grep -vc $'\tyes$') of $count do not work"
		if [ -n "${CI:-}" ]; then # other steps read the tree
			diff -I '^# ' "$file" "$work/cells" || rc=1 # a newer build of the kernel is no difference
		else
			cp "$work/cells" "$file"
		fi
	done
	[ -n "${CI:-}" ] || UPDATE=1 go test -C test -count=1 ./kernels -ginkgo.label-filter=page
	exit $rc
fi
POWER_PODS=8 POWER_SEED=1 scripts/vm/power.sh
scripts/vm/reboot.sh
tests=$(mktemp -d)
trap 'rm -rf "$tests"' EXIT
# Compiled here, where the processor is a real one.
grep -rlE 'Label\(.*"kernel"' --include='*_test.go' . | xargs -n 1 dirname | sort -u | while read -r dir; do
	name=$(tr / - <<<"${dir#./}")
	focus=.
	if [ -n "$log" ]; then # the log names the test binary and the text of the spec
		# shellcheck disable=SC2016 # a class of characters
		focus=$(awk -F'\t' -v p="/$(basename "$dir").test" '"/" $1 ~ p "$" { print $2 }' "$log" |
			sort -u | sed 's/[][\\.*^$(){}?+|/]/\\&/g' | paste -sd '|')
		[ -n "$focus" ] || continue
	fi
	(cd "$dir" && go test -c -o "$tests/$name.test" .)
	echo "$PWD/${dir#./}" >"$tests/$name.dir"
	echo "$focus" >"$tests/$name.focus"
	! grep -qE 'Label\(.*"netkit"' "$dir"/*_test.go || echo "$name" >>"$tests/netkit"
done
[ -n "$(ls "$tests")" ] || { echo "== nothing was skipped, so nothing runs in the virtual machine"; exit 0; }

export HAWSER_BIN=$PWD/bin NSTEST_REQUIRE=all NSTEST_SLOWNESS=3
failed() { echo "== FAILED in the virtual machine"; exit 1; }
scripts/vm/run.sh scripts/vm/specs.sh "$tests" 'kernel && !netkit' scripts/vm/hardware.sh "$HAWSER_BIN" || failed
[ ! -e "$tests/netkit" ] || {
	mkdir "$tests/newer"
	while read -r name; do mv "$tests/$name".* "$tests/newer/"; done <"$tests/netkit"
	VM_SUITE=trixie scripts/vm/run.sh scripts/vm/specs.sh "$tests/newer" netkit || failed
}
echo "== passed in the virtual machine"
