#!/bin/bash
# demo.sh: runs test/demo, which creates a throw-away host in its own namespaces. Needs root or user namespaces.
#
# Environment:
#   HAWSER_BIN       directory of the plugins; unset builds bin/
#   HAWSER_CONFLIST  network configuration list (test/demo/demo.conflist). If it has the plugin firewall, the host's
#                    FORWARD policy is DROP.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh iproute2 iptables nftables procps
[ -n "${HAWSER_BIN:-}" ] || { scripts/build.sh; export HAWSER_BIN=$PWD/bin; }
demo=$(mktemp -d)
trap 'rm -rf "$demo"' EXIT
(cd test && CGO_ENABLED=0 go test -c -o "$demo/demo.test" ./demo)
[ -z "${HAWSER_CONFLIST:-}" ] || HAWSER_CONFLIST=$(realpath "$HAWSER_CONFLIST")
cd test/demo
# An unprivileged user's PATH has no sbin. A skipped spec would demonstrate nothing.
export HAWSER_CONFLIST PATH=$PATH:/usr/sbin:/sbin NSTEST_REQUIRE=1
"$demo/demo.test" -ginkgo.succinct -ginkgo.no-color
