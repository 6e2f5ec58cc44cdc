#!/bin/bash
# packages.sh ARCH STAGE DOCS DIST: the Debian and the RPM package of an architecture into
# DIST, with the plugins and the notices in STAGE and the documentation in DOCS. VERSION and
# SOURCE_DATE_EPOCH are taken from the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
export PACKAGE_ARCH=$1 STAGE=$2 DOCS=$3
# ARMv7 with floating point, as release.sh builds it: armhf and armv7hl.
[ "$PACKAGE_ARCH" != arm ] || PACKAGE_ARCH=arm7
cd "$here/../.."
for packager in deb rpm; do
	out=$(CGO_ENABLED=0 go run "$nfpm" package -f scripts/release/nfpm.yaml -p "$packager" -t "$4" 2>&1) || { echo "$out" >&2; exit 1; }
done
