#!/bin/bash
# packages.sh ARCH ONE NOTICES DOCS DIST: the Debian and the RPM package of an architecture into
# DIST, with the one file and its links in ONE, the notices and the documentation in DOCS. VERSION and
# SOURCE_DATE_EPOCH are taken from the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
export PACKAGE_ARCH=$1 ONE=$2 NOTICES=$3 DOCS=$4
# ARMv7 with floating point, as release.sh builds it: armhf and armv7hl.
[ "$PACKAGE_ARCH" != arm ] || PACKAGE_ARCH=arm7
cd "$here/../.."
config=$(mktemp)
trap 'rm -f "$config"' EXIT
cp scripts/release/nfpm.yaml "$config"
for link in "$ONE"/*; do
	[ ! -L "$link" ] || echo "  - {src: $(readlink "$link"), dst: /opt/cni/bin/${link##*/}, type: symlink}" >>"$config"
done
for packager in deb rpm; do
	out=$(CGO_ENABLED=0 go run "$nfpm" package -f "$config" -p "$packager" -t "$5" 2>&1) || { echo "$out" >&2; exit 1; }
done
