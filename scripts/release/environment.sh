# environment.sh: sets the environment in which a release is built, independently of the caller's. release.sh, image.sh
# and vex.sh source it at the top of the tree. ARCHS, VERSION, REVISION (the commit) and SOURCE_DATE_EPOCH can be set in
# advance, for example in a tree without git history.
# shellcheck shell=bash
# shellcheck source=/dev/null
. scripts/toolchain.sh
export GIT_CEILING_DIRECTORIES=${PWD%/*} # ignores a repository that this tree was unpacked in
VERSION=${VERSION:-$(scripts/version.sh)}
VERSION=${VERSION#v}
ARCHS=${ARCHS:-amd64 arm64 arm loong64 ppc64le s390x riscv64 mips64le}
# Empty if tracked files differ from the commit.
REVISION=${REVISION-$([ -n "$(git status --porcelain -uno 2>/dev/null)" ] || git rev-parse HEAD 2>/dev/null || true)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y VERSION)}
export VERSION REVISION ARCHS SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
# Settings that the toolchain would take from its surroundings. With empty GOFLAGS, it would use those of `go env -w`.
export GOFLAGS=-buildvcs=false GOEXPERIMENT='' GOFIPS140=off GOWORK=off GOAMD64=v1 GOARM=7 GOARM64=v8.0 GOMIPS64=hardfloat GOPPC64=power8 GORISCV64=rva20u64
umask 022
if [[ $VERSION == *+go* && $VERSION != *"+$(go env GOVERSION)" ]]; then
	echo "release: VERSION=$VERSION does not match $(go env GOVERSION); set GOTOOLCHAIN=go${VERSION##*+go} or change VERSION" >&2
	exit 1
fi

