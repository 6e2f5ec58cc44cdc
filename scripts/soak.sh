#!/bin/bash
# soak.sh [MINUTES]: runs a node with containerd 2, firewalld, "hawser watch" and the DHCP daemon in its own namespaces.
# For MINUTES (120), 30 pods a minute start and stop, while plugins and containerd are killed, rules are flushed,
# firewalld is reloaded, the disk fills up, and time stamps of files change (a namespace cannot have its own clock).
# Prints the figures and the differences between the node's state at the end and at the start. Needs root and cgroups.
#
# Environment:
#   SEED               seed of the random choices (random)
#   HAWSER_CONTAINERD  directory of another containerd 2
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
