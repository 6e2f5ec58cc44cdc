#!/bin/bash
# bench.sh: compares Hawser's plugins, as separate programs and as one program, with the newest reference plugins and
# Debian's, on throw-away hosts. Needs root.
#
# The first part, "calls", alternates between the plugins call by call and writes its table to dist/performance.txt. The
# second part, "paths", measures the data path of containers on networks of the first peer and of Hawser, for several
# numbers of containers, and writes its table to dist/datapath.txt. It does not run if BENCH or QUICK is set without
# PARTS. Without BENCH and QUICK, the calls take a quarter of an hour, and both parts update docs/performance.md:
# targets, some rows, sizes, the data path and its plot.
#
# Environment:
#   PEER=DIR      compare with the plugins in DIR instead of the two releases of the reference
#   BEFORE=DIR    also compare with an older Hawser build
#   PARTS         "calls" or "paths": run only this part
#   BENCH=REGEXP  measure only these rows; with PARTS=paths, only these figures
#   BENCH_TIME    time for each scenario (2s, with QUICK 5s); with PARTS=paths, for each figure and round (200ms)
#   N             maximum number of rounds of a scenario (100, with QUICK 30); number of rounds of the data path (9)
#   QUICK=1       take two minutes
#   HAWSER_BIN    directory of Hawser's plugins, with the single program in its directory one/; unset builds bin/
set -euo pipefail
cd "$(dirname "$0")/.."

[ "$(id -u)" = 0 ] || { echo "bench: needs root" >&2; exit 1; }
unset GOMAXPROCS
scripts/deps.sh binutils iproute2 iptables nftables procps xz-utils zstd
plugins=${HAWSER_BIN:-}
[ -n "$plugins" ] || { scripts/build.sh; plugins=$PWD/bin; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/empty" "$work/disk" "$work/stripped"
args=()
add_peer() { # add_peer NAME DIR
	[ -x "$2/bridge" ] || { echo "bench: no plugins in $2" >&2; return; }
	args+=(-peer "$1=$2")
}
if [ -n "${PEER:-}" ]; then
	add_peer "$("$PEER/bridge" --version 2>&1 </dev/null | head -n 1)" "$PEER"
else
	newest=$(scripts/reference.sh)
	scripts/deps.sh containernetworking-plugins
	add_peer "${newest##*/}" "$newest"
	add_peer "Debian's $(dpkg-query -Wf '${Version}' containernetworking-plugins 2>/dev/null)" /usr/lib/cni
fi
[ -z "${BEFORE:-}" ] || add_peer "hawser before" "$BEFORE"
[ ${#args[@]} -gt 0 ] || { echo "bench: no plugins to compare with" >&2; exit 1; }
(cd test && export CGO_ENABLED=0 && go test -c -o "$work/bench" ./bench &&
	go build -trimpath -ldflags '-s -w' -o "$work/empty/bridge" ./bench/empty)

first=${args[1]#*=}
for program in "$plugins"/*; do # only those that the first peer also has
	name=${program##*/}
	[ ! -f "$program" ] || [ ! -f "$first/$name" ] || strip -o "$work/stripped/$name" "$first/$name"
done
[ ! -d "$plugins/one" ] || args+=(-one "$plugins/one")
args+=(-ours "$plugins" -stripped "$work/stripped" -empty "$work/empty" -work "$work/disk"
	-fact "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors, $(awk '/^MemTotal/ { printf "%d", $2 / 1048576 }' /proc/meminfo) GiB of memory"
	-fact "Linux $(uname -r); leases on $(stat -fc %T "$work/disk"); compiled by $(go env GOVERSION); $(iptables --version)"
	-fact "hawser $(scripts/version.sh)" -rows "${BENCH:-}")
calls=(-time "${BENCH_TIME:-2s}" -table dist/performance.txt) paths=(-copies 1 -table dist/datapath.txt)
[ -z "${N:-}" ] || { calls+=(-n "$N"); paths+=(-path-n "$N"); }
if [ -n "${QUICK:-}" ]; then
	calls+=(-quick -time "${BENCH_TIME:-5s}" -n "${N:-30}")
elif [ -z "${BENCH:-}" ]; then
	calls+=(-page docs/performance.md -compress "xz -9" -compress "zstd -19" -compress "gzip -9")
	paths+=(-page docs/performance.md)
fi
mkdir -p dist
run() { # run LABEL FLAG...
	"$work/bench" -ginkgo.label-filter="$1" -ginkgo.succinct -ginkgo.no-color -ginkgo.timeout=4h "${args[@]}" "${@:2}"
}
[ "${PARTS:-calls}" != calls ] || run rows "${calls[@]}"
[ -n "${PARTS:-}${QUICK:-}${BENCH:-}" ] || run paths "${paths[@]}"
if [ "${PARTS:-}" = paths ]; then
	[ -z "${BENCH_TIME:-}" ] || paths+=(-path-time "$BENCH_TIME")
	run paths "${paths[@]}"
fi
