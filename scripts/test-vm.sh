#!/bin/bash
# test-vm.sh [COMMAND [ARG...]]: runs COMMAND on Debian's kernel in a virtual machine that sees this machine's files.
#
# Without COMMAND, it simulates losses of power (vm/power.sh) and reboots (vm/reboot.sh), tests a physical device
# (vm/hardware.sh), and runs the specs labelled "kernel". Specs labelled "netkit" need a newer kernel and run on Debian
# 13's. No spec may skip.
#
# With KERNEL, it tests each feature on this kernel instead, and writes docs/kernels and docs/kernels.md. If CI is set,
# it compares the results with docs/kernels and writes nothing.
#
# Environment:
#   NSTEST_SKIPLOG  log of test.sh: run only specs that skipped there
#   KERNEL          5.10, 6.1 or 6.12
#   ROWS            with KERNEL: the configurations to test, described in vm/kernels.sh (stock)
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
	! grep -q "^VERSION_CODENAME=$suite$" /etc/os-release || suite= # run.sh's default, already cached
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir -p docs/kernels
	(cd test/kernels && CGO_ENABLED=0 go test -c -o "$work/kernels.test" .)
	# Specs run one after the other, so a second processor would be idle.
	export HAWSER_BIN=$PWD/bin/one NSTEST_REQUIRE=all NSTEST_SLOWNESS=3
	export VM_CPUS=1 VM_SUITE=$suite VM_TIMEOUT=${VM_TIMEOUT:-7200}
	read -ra rows <<<"${ROWS:-stock}"
	rc=0
	# On a busy machine the guest may calibrate its TSC wrongly. With the TSC as clock source, time would then run many
	# times too fast.
	boot() {
		[ $# = 0 ] || VM_APPEND="clocksource=hpet ${VM_APPEND:-}" scripts/vm/run.sh scripts/vm/kernels.sh \
			"$work/kernels.test" "$@" >>"$work/out" || rc=1
	}
	shared=() # rows that share a boot, because they have no kernel parameter
	for row in "${rows[@]}"; do
		case $row in *=*) VM_APPEND=${row##*,} boot "$row" ;; *) shared+=("$row") ;; esac
	done
	boot "${shared[@]}"
	grep -vE $'^(cell|kernel)\t' "$work/out" || true
	for row in "${rows[@]}"; do
		{
			sed -n $'s/^kernel\t/# /p;T;q' "$work/out"
			awk -F'\t' -v row="$row" '$1 == "cell" && $2 == row { print $3 "\t" $4 }' "$work/out"
		} >"$work/cells"
		count=$(grep -vc '^# ' "$work/cells") || continue
		file=docs/kernels/$KERNEL-$row.txt
		echo "== $file: $(grep -v '^# ' "$work/cells" | grep -vc $'\tyes$') of $count features do not work"
		if [ -n "${CI:-}" ]; then # other steps are reading the tree
			diff -I '^# ' "$file" "$work/cells" || rc=1 # ignore the version of the kernel
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
# Compiled here, because the emulated processor is slow.
grep -rlE 'Label\(.*"kernel"' --include='*_test.go' . | xargs -n 1 dirname | sort -u | while read -r dir; do
	name=$(tr / - <<<"${dir#./}")
	focus=.
	if [ -n "$log" ]; then # the log names the test binary and the text of the spec
		# shellcheck disable=SC2016 # a bracket expression, not an expansion
		focus=$(awk -F'\t' -v p="/$(basename "$dir").test" '"/" $1 ~ p "$" { print $2 }' "$log" |
			sort -u | sed 's/[][\\.*^$(){}?+|/]/\\&/g' | paste -sd '|')
		[ -n "$focus" ] || continue
	fi
	(cd "$dir" && go test -c -o "$tests/$name.test" .)
	echo "$PWD/${dir#./}" >"$tests/$name.dir"
	echo "$focus" >"$tests/$name.focus"
	! grep -qE 'Label\(.*"netkit"' "$dir"/*_test.go || echo "$name" >>"$tests/netkit"
done
[ -n "$(ls "$tests")" ] || { echo "== test.sh skipped no spec that the virtual machine could run"; exit 0; }

export HAWSER_BIN=$PWD/bin NSTEST_REQUIRE=all NSTEST_SLOWNESS=3
failed() { echo "== FAILED in the virtual machine"; exit 1; }
scripts/vm/run.sh scripts/vm/specs.sh "$tests" 'kernel && !netkit' scripts/vm/hardware.sh "$HAWSER_BIN" || failed
[ ! -e "$tests/netkit" ] || {
	mkdir "$tests/newer"
	while read -r name; do mv "$tests/$name".* "$tests/newer/"; done <"$tests/netkit"
	VM_SUITE=trixie scripts/vm/run.sh scripts/vm/specs.sh "$tests/newer" netkit || failed
}
echo "== passed in the virtual machine"
