#!/bin/bash
# demo.sh: test/demo on a throw-away host in namespaces of its own. HAWSER_BIN and
# HAWSER_CONFLIST are other plugins and another network for it;
# the host forwards nothing of itself where that has the plugin firewall.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh iproute2 iptables nftables procps util-linux
plugins=${HAWSER_BIN:-}
[ -n "$plugins" ] || { scripts/build.sh; plugins=$PWD/bin; }
demo=$(mktemp -d)
trap 'rm -rf "$demo"' EXIT
(cd test && CGO_ENABLED=0 go build -o "$demo/demo" ./demo)

# An ordinary user becomes root in the namespaces, but has no sbin in PATH.
export PATH=$PATH:/usr/sbin:/sbin
namespaces=(--mount --net --pid --ipc --uts --propagation private --fork --kill-child --mount-proc)
[ "$(id -u)" = 0 ] || namespaces+=(--map-root-user)
# shellcheck disable=SC2016 # expanded inside
unshare "${namespaces[@]}" bash -euc '
	mount -t sysfs sysfs /sys
	mount -t tmpfs tmpfs /run
	mount -t tmpfs tmpfs /var/lib
	mkdir -p /run/netns /run/lock /var/lib/cni
	exec "$@"' demo "$demo/demo" "$plugins" "${HAWSER_CONFLIST:-test/demo/demo.conflist}"
