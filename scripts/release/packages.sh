#!/bin/bash
# packages.sh ARCH ONE NOTICES DOCS DIST: builds the Debian and the RPM package for an architecture into DIST. They
# contain hawser and its links from ONE, the file NOTICES, the documentation in DOCS, and man pages generated from it.
# VERSION and SOURCE_DATE_EPOCH come from the environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
export PACKAGE_ARCH=$1 ONE=$2 NOTICES=$3 DOCS=$4
# GOARM=7 with floating point, for which the packages are named armhf and armv7hl.
[ "$PACKAGE_ARCH" != arm ] || PACKAGE_ARCH=arm7
cd "$here/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
config=$work/nfpm.yaml
cp scripts/release/nfpm.yaml "$config"
plugins=()
for link in "$ONE"/*; do
	[ -L "$link" ] || continue
	echo "  - {src: $(readlink "$link"), dst: /opt/cni/bin/${link##*/}, type: symlink}" >>"$config"
	plugins+=("${link##*/}")
done
mkdir "$work/man"
docs=$(realpath "$DOCS")
date=$(date -ud "@$SOURCE_DATE_EPOCH" +%F)
(cd scripts/man && CGO_ENABLED=0 GOFLAGS='' go run . -docs "$docs" -version "$VERSION" -date "$date" "$work/man" "${plugins[@]}")
for page in "$work"/man/*; do
	[ -f "$page" ] || continue # DOCS has no pages
	gzip -9n "$page"
	echo "  - {src: $page.gz, dst: /usr/share/man/man8/${page##*/}.gz, file_info: {mode: 0644}}" >>"$config"
done
CGO_ENABLED=0 scripts/retry.sh go run "$nfpm" --version >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
for packager in deb rpm; do
	out=$(CGO_ENABLED=0 go run "$nfpm" package -f "$config" -p "$packager" -t "$5" 2>&1) || { echo "$out" >&2; exit 1; }
done
