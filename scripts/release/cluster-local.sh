#!/bin/bash
# cluster-local.sh STAGE BOM DOCS ARCHIVE: takes cluster-local out of the programs in STAGE, which become the default
# archive, and makes an archive of its own of it: the program, the licences of what is linked, the documentation.
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
