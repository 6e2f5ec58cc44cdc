#!/bin/bash
# image.sh [DIST [STAGE]]: writes hawser-VERSION-oci.tar, the OCI image for all architectures, into DIST (dist), without
# a container engine. STAGE contains the programs as ARCH/hawser; without STAGE, they are built. The same commit and Go
# version produce the same bytes. scripts/release/environment.sh lists the variables.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=/dev/null
. scripts/release/environment.sh

dist=${1:-dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=${2:-$work}
if [ $# -lt 2 ]; then
	for arch in $ARCHS; do
		GOARCH=$arch scripts/build.sh "$stage/$arch" cmd/hawser
	done
fi
mkdir -p "$dist"
(cd scripts/image && CGO_ENABLED=0 go build -o "$work/image" .)
"$work/image" -version "$VERSION" -revision "$REVISION" -created "$SOURCE_DATE_EPOCH" \
	-out "$dist/hawser-$VERSION-oci.tar" "$stage"
