#!/bin/bash
# bench.sh: our plugins against others, call by call in turns, on throw-away hosts (root).
# PEER is a directory with the others, Debian's by default; BENCH a regexp of the rows;
# BENCH_TIME the time for each scenario (5s), N the most rounds of each; QUICK=1 takes two
# minutes. A run of everything, of a quarter of an hour, writes docs/performance.md.
# HAWSER_BIN is a directory with our plugins.
set -euo pipefail
cd "$(dirname "$0")/.."

[ "$(id -u)" = 0 ] || { echo "bench: needs root" >&2; exit 1; }
scripts/deps.sh iproute2 iptables nftables procps
peer=${PEER:-/usr/lib/cni}
if [ -n "${PEER:-}" ]; then
	name=$("$peer/bridge" --version 2>&1 </dev/null | head -n 1) || true
else
	scripts/deps.sh containernetworking-plugins
	name="Debian's $(dpkg-query -Wf '${Package} ${Version}' containernetworking-plugins 2>/dev/null)" || true
fi
[ -x "$peer/bridge" ] || { echo "bench: no plugins in $peer; PEER=DIR names another directory" >&2; exit 1; }

plugins=${HAWSER_BIN:-}
[ -n "$plugins" ] || { scripts/build.sh; plugins=$PWD/bin; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/ours" "$work/empty" "$work/disk"
cp "$plugins"/* "$work/ours" # a build in the meantime changes nothing
(cd test/bench && export CGO_ENABLED=0 &&
	go build -o "$work/bench" . && go build -trimpath -ldflags '-s -w' -o "$work/empty/bridge" ./empty)

args=(-ours "$work/ours" -peer "$peer" -peer-name "${name:-peer}" -empty "$work/empty" -work "$work/disk"
	-version "$(scripts/version.sh)" -time "${BENCH_TIME:-5s}")
[ -z "${N:-}" ] || args+=(-n "$N")
if [ -n "${QUICK:-}" ]; then
	args+=(-quick -time "${BENCH_TIME:-1s}" -n "${N:-20}")
elif [ -z "${BENCH:-}" ]; then
	args+=(-page docs/performance.md -plot docs/performance.svg)
fi
"$work/bench" "${args[@]}" -rows "${BENCH:-}"
