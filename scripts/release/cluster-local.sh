#!/bin/bash
# cluster-local.sh STAGE BOM DOCS ARCHIVE: moves cluster-local out of STAGE, whose programs become the default archive,
# into a separate ARCHIVE with the licenses of the linked modules and the documentation.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mv "$1/cluster-local" "$work/"
"$2" -version "$VERSION" -notices "$work/THIRD_PARTY.md" "$work/cluster-local"
cp "$3/LICENSE" "$work/"
cp -r "$3" "$work/hawser-cni"
here=$PWD
(cd "$work" && "$here/archive.sh" -- ./*) >"$4"
