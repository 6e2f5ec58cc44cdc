#!/bin/bash
# test-release.sh: tests "make install", "make release" and "make image" in copies of this tree, the plugins for every
# architecture, and the manifests in deploy/.
#
# Environment:
#   TESTFLAGS  flags for go test
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=/dev/null
. scripts/toolchain.sh # as release.sh

scripts/deps.sh dpkg dpkg-dev git make mandoc openssh-client rpm squashfs-tools systemd
[ -t 1 ] || export GINKGO_NO_COLOR=TRUE
export CGO_ENABLED=0 # as test.sh
scripts/modules.sh scripts/{bom,image,man} test/{release,image}
read -ra flags <<<"$(scripts/flags.sh | paste -sd ' ') -vet=off ${TESTFLAGS:-}"
for module in scripts/bom scripts/man; do
	(cd "$module" && go test "${flags[@]}" ./...)
done
for module in test/release test/image; do
	(cd "$module" && go test -count=1 -timeout 45m "${flags[@]}" ./...)
done
