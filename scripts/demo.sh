#!/bin/bash
# demo.sh: test/demo, which makes a throw-away host in namespaces of its own. HAWSER_BIN and
# HAWSER_CONFLIST are other plugins and another network for it;
# the host forwards nothing of itself where that has the plugin firewall.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh iproute2 iptables nftables procps
[ -n "${HAWSER_BIN:-}" ] || { scripts/build.sh; export HAWSER_BIN=$PWD/bin; }
demo=$(mktemp -d)
trap 'rm -rf "$demo"' EXIT
(cd test && CGO_ENABLED=0 go test -c -o "$demo/demo.test" ./demo)
[ -z "${HAWSER_CONFLIST:-}" ] || HAWSER_CONFLIST=$(realpath "$HAWSER_CONFLIST")
cd test/demo
# An ordinary user has no sbin in PATH. A skip would show nothing.
export HAWSER_CONFLIST PATH=$PATH:/usr/sbin:/sbin NSTEST_REQUIRE=1
"$demo/demo.test" -ginkgo.succinct -ginkgo.no-color
