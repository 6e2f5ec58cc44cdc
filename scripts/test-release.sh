#!/bin/bash
# test-release.sh: "make install" and "make release" from copies of this tree, and the
# plugins for every architecture. TESTFLAGS go to go test.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh dpkg dpkg-dev git make rpm
[ -t 1 ] || export GINKGO_NO_COLOR=TRUE
(cd scripts/bom && go test ./...)
cd test/release
read -ra flags <<<"${TESTFLAGS:-}"
go test -count=1 -timeout 15m "${flags[@]}" ./...
