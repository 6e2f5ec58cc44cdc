#!/bin/bash
# release.sh: what users download, into dist/: the source archive, and what is built from it: for each architecture
# the one file, packages of it for Debian and RPM, a tarball with a file for each plugin, and the SBOMs; an OCI
# image for all of them; provenance and the sums of all. The same commit and the same Go give the same bytes. What
# differs from day to day or from releaser to releaser stands beside: the OpenVEX document (VEX=1 fails
# without it), and the signatures of SIGNING_KEY. scripts/release/environment.sh says which variables it takes else.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=/dev/null
. scripts/release/environment.sh
changed=$(git status --porcelain -uno 2>/dev/null || true)
if [ -n "$changed" ] && [ -z "$REVISION" ]; then
	echo "release: these files differ from the commit: commit them, or say in REVISION what they are" >&2
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
[ $rc = 0 ] || echo "release: no OpenVEX document; scripts/release/vex.sh makes it later" >&2

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
	# With the names of the reference's tarball (./bridge), of which build scripts take some. Not the directory
	# itself: it would change the mode and the owner of /opt/cni/bin.
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
cp -r "$dist" dist.new # whole, before the former one goes
rm -rf dist
mv dist.new dist
echo "released in dist:" dist/*
