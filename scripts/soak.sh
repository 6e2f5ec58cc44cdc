#!/bin/bash
# soak.sh [MINUTES]: a node in namespaces of its own, with containerd 2, firewalld, "hawser watch" and the DHCP daemon, on
# which 30 pods a minute come and go for MINUTES (120) while plugins and containerd are killed, rules are flushed,
# firewalld is reloaded, the disk is full, and files get other times (a namespace cannot have a clock of its own). Needs
# root and cgroups. Prints the figures, and what differs at the end from the start.
set -euo pipefail
cd "$(dirname "$0")/.."
export HAWSER_SOAK=${1:-120}

scripts/deps.sh
scripts/deps.sh busybox-static containerd iproute2 nftables procps runc util-linux
scripts/build.sh
[ -n "${HAWSER_CONTAINERD:-}" ] || HAWSER_CONTAINERD=$(scripts/clients.sh containerd)
export HAWSER_CONTAINERD HAWSER_BIN=$PWD/bin NSTEST_REQUIRE=all GINKGO_NO_COLOR=TRUE
cd test/runtimes
exec go test -count=1 -timeout 24h -v . -ginkgo.timeout 24h -ginkgo.label-filter soak -ginkgo.seed "${SEED:-$RANDOM}"
