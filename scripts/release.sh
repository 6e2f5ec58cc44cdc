#!/bin/bash
# release.sh: what users download, into dist/: for each architecture the one file, packages of it for Debian
# and RPM, a tarball with a file for each plugin, and the SBOM; an OCI image for all of them, and the sums of
# all. The same commit and the same Go give the same bytes. scripts/release/environment.sh says which
# variables it takes.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=/dev/null
. scripts/release/environment.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tools" "$work/dist"
(cd scripts/bom && CGO_ENABLED=0 go build -o "$work/tools/bom" .)

docs=$work/docs
mkdir "$docs"
cp -r --parents ./*.md LICENSE deploy docs cmd/hawser/README.md plugins/*/*/README.md "$docs"
chmod -R u=rwX,go=rX "$docs"

for arch in $ARCHS; do
	name=hawser-cni-linux-$arch-v$VERSION
	stage=$work/$arch
	one=$work/$arch.one
	GOARCH=$arch scripts/build.sh "$stage"
	mv "$stage/one" "$one"
	"$work/tools/bom" -version "$VERSION" -notices "$stage/THIRD_PARTY.md" -sbom "$work/dist/$name.cdx.json" "$stage"/*
	for plugin in "$one"/*; do
		ln -sf hawser "$plugin"
	done
	mv "$stage/hawser" "$one/hawser"
	cp "$one/hawser" "$work/dist/hawser-linux-$arch-v$VERSION"
	install -D "$one/hawser" "$work/image/$arch/hawser"
	scripts/release/packages.sh "$arch" "$one" "$stage/THIRD_PARTY.md" "$docs" "$work/dist"
	cp LICENSE "$stage/"
	cp -r "$docs" "$stage/hawser-cni"
	# Not the directory itself: it would change the mode and the owner of /opt/cni/bin.
	(cd "$stage" && tar -cf - --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go=u-w \
		--mtime="@$SOURCE_DATE_EPOCH" -- *) | gzip -9n >"$work/dist/$name.tgz"
done
scripts/image.sh "$work/dist" "$work/image"
(cd "$work/dist" && sha256sum -- * >"$work/SHA256SUMS" && sha512sum -- * >"$work/SHA512SUMS")
mv "$work"/SHA*SUMS "$work/dist/"
rm -rf dist
cp -r "$work/dist" dist
echo "released in dist:" dist/*
