#!/bin/bash
# bench.sh: our plugins, as programs of their own and as one, against the newest reference, Debian's and, with
# BEFORE=DIR, an older build of ours, call by call in turns, on throw-away hosts (root). PEER=DIR takes the place of
# the reference's two; BENCH is a regexp of the rows; BENCH_TIME the time for each scenario (2s), N the most rounds of
# each; QUICK=1 takes two minutes. The whole table goes into dist/performance.txt, too. A run of everything, of a
# quarter of an hour, also writes the aims, some rows and the sizes into docs/performance.md. HAWSER_BIN is a
# directory with our plugins, and one/ in it one with them as one program.
#
# The data path follows: what containers get from the first peer's networks and from ours, at several numbers of
# containers. Its table goes into dist/datapath.txt, and a run of everything writes the page's part and its plot.
# PARTS=calls and PARTS=paths run one of the two; with PARTS=paths, BENCH is a regexp of the figures, BENCH_TIME the
# time of each figure and round (200ms), N the rounds (9).
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
peer() { # peer NAME DIR
	[ -x "$2/bridge" ] || { echo "bench: no plugins in $2" >&2; return; }
	args+=(-peer "$1=$2")
}
if [ -n "${PEER:-}" ]; then
	peer "$("$PEER/bridge" --version 2>&1 </dev/null | head -n 1)" "$PEER"
else
	newest=$(scripts/reference.sh)
	scripts/deps.sh containernetworking-plugins
	peer "${newest##*/}" "$newest"
	peer "Debian's $(dpkg-query -Wf '${Version}' containernetworking-plugins 2>/dev/null)" /usr/lib/cni
fi
[ -z "${BEFORE:-}" ] || peer "hawser before" "$BEFORE"
[ ${#args[@]} -gt 0 ] || { echo "bench: nothing to compare with" >&2; exit 1; }
(cd test && export CGO_ENABLED=0 && go test -c -o "$work/bench" ./bench &&
	go build -trimpath -ldflags '-s -w' -o "$work/empty/bridge" ./bench/empty)

first=${args[1]#*=}
for program in "$plugins"/*; do # those that both have
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
