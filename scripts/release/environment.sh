# environment.sh: what a release is built with, whatever is around it: sourced by release.sh and image.sh at the
# top of the tree. ARCHS, VERSION, REVISION (the commit) and SOURCE_DATE_EPOCH may be in the environment, as where
# there is no history.
# shellcheck shell=bash
VERSION=${VERSION:-$(scripts/version.sh)}
VERSION=${VERSION#v}
ARCHS=${ARCHS:-amd64 arm64 arm ppc64le s390x riscv64 mips64le}
REVISION=${REVISION-$(git rev-parse HEAD 2>/dev/null || true)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y VERSION)}
export VERSION REVISION ARCHS SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
# What else the toolchain would take from its surroundings.
export GOFLAGS='' GOEXPERIMENT='' GOWORK=off GOAMD64=v1 GOARM=7 GOARM64=v8.0 GOMIPS64=hardfloat GOPPC64=power8 GORISCV64=rva20u64
umask 022
