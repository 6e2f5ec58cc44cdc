#!/bin/bash
# release.sh: builds all files that users download into dist/. First it creates the source archive. From that it builds,
# for each architecture, hawser, its Debian and RPM packages, a tarball with a program for each plugin, a tarball of
# cluster-local, and the SBOMs. An OCI image for all architectures, the provenance and the checksums follow. The same
# commit and Go version produce the same bytes. The checksums omit files that depend on the day or the releaser: the
# OpenVEX document (VEX=1 requires it) and the signatures by SIGNING_KEY. scripts/release/environment.sh lists the other
# variables.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=/dev/null
. scripts/release/environment.sh
changed=$(git status --porcelain -uno 2>/dev/null || true)
if [ -n "$changed" ] && [ -z "$REVISION" ]; then
	echo "release: these files differ from the commit; commit them or set REVISION" >&2
	echo "$changed" >&2
	exit 1
fi
scripts/release/sign.sh
top=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work" "$top/dist.new"' EXIT
dist=$work/dist
mkdir "$work/tools" "$work/beside" "$dist"
rc=0
scripts/release/vex.sh "$work/beside" || rc=$?
[ $rc = 0 ] || [[ $rc = 3 && -z ${VEX:-} ]] || exit $rc
[ $rc = 0 ] || echo "release: no OpenVEX document; run scripts/release/vex.sh later to create it" >&2

scripts/release/source.sh "$dist"
source=hawser-cni-$VERSION
tar -xzf "$dist/$source-source.tgz" -C "$work"
cd "$work/$source"
(cd scripts/bom && CGO_ENABLED=0 go build -o "$work/tools/" . ./provenance)

docs=$work/docs
mkdir "$docs"
cp -r --parents ./*.md LICENSE deploy docs cmd/*/README.md plugins/*/*/README.md "$docs"

for arch in $ARCHS; do
	name=hawser-cni-linux-$arch-v$VERSION
	stage=$work/$arch
	one=$work/$arch.one
	GOARCH=$arch scripts/build.sh "$stage"
	mv "$stage/one" "$one"
	scripts/release/cluster-local.sh "$stage" "$work/tools/bom" "$docs" "$dist/hawser-cluster-local-linux-$arch-v$VERSION.tgz"
	"$work/tools/bom" -version "$VERSION" -notices "$stage/THIRD_PARTY.md" -cyclonedx "$dist/$name.cdx.json" \
		-spdx "$dist/$name.spdx.json" "$stage"/*
	for plugin in "$one"/*; do
		ln -sf hawser "$plugin"
	done
	mv "$stage/hawser" "$one/hawser"
	cp "$one/hawser" "$dist/hawser-linux-$arch-v$VERSION"
	install -D "$one/hawser" "$work/image/$arch/hawser"
	scripts/release/packages.sh "$arch" "$one" "$stage/THIRD_PARTY.md" "$docs" "$dist"
	cp LICENSE "$stage/"
	cp -r "$docs" "$stage/hawser-cni"
	# The names are those in the reference's tarball (./bridge), because build scripts extract some of them. The entry
	# of the directory is left out, because it would change the mode and the owner of /opt/cni/bin.
	(cd "$stage" && "$work/$source/scripts/release/archive.sh" -- ./*) >"$dist/$name.tgz"
done
scripts/image.sh "$dist" "$work/image"
"$work/tools/provenance" -version "$VERSION" -revision "$REVISION" -archs "$ARCHS" -go "$(go env GOVERSION)" \
	-source "$dist/$source-source.tgz" -sums go.sum "$dist" >"$work/provenance"
mv "$work/provenance" "$dist/hawser-$VERSION.provenance.json"
(cd "$dist" && sha512sum -- * >"$work/SHA512SUMS" && mv "$work/SHA512SUMS" . && sha256sum -- * >"$work/SHA256SUMS")
mv "$work/SHA256SUMS" "$dist/"
cd "$top"
scripts/release/sign.sh "$dist/SHA256SUMS" "$dist/hawser-$VERSION.provenance.json"
cp -r "$work/beside/." "$dist/"
cp -r "$dist" dist.new # complete before the old directory is removed
rm -rf dist
mv dist.new dist
echo "released in dist:" dist/*
