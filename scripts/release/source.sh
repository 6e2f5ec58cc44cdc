#!/bin/bash
# source.sh DIST: writes hawser-cni-VERSION-source.tgz, from which a release is built, into DIST. It contains the files
# that git tracks (without git history, all files except bin, dist and vendor), the required modules in vendor/, and the
# release's version. The caller has sourced scripts/release/environment.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=hawser-cni-$VERSION
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/$name"
if git rev-parse 2>/dev/null; then
	git ls-files -z
else
	find . \( -path ./bin -o -path ./dist -o -path ./vendor \) -prune -o -type f -print0
fi | tar -cf - --null -T - | tar -xf - -C "$work/$name"
echo "$VERSION" >"$work/$name/VERSION"
(cd "$work/$name" && go mod vendor)
(cd "$work" && "$OLDPWD/scripts/release/archive.sh" "$name") >"$1/$name-source.tgz"
