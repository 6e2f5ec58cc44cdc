#!/bin/bash
# build.sh: every plugin below plugins/ into bin/, static and stripped.
# GOOS, GOARCH and VERSION are taken from the environment.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${VERSION:-$(scripts/version.sh)}
export CGO_ENABLED=0
mkdir -p bin
for main in plugins/*/*/main.go; do
	[ -e "$main" ] || { echo "build: no plugins/*/*/main.go" >&2; exit 1; }
	dir=${main%/main.go}
	go build -trimpath -buildvcs=false -o "bin/${dir##*/}" \
		-ldflags "-s -w -X github.com/hawser-cni/plugins/pkg/skel.version=$version" "./$dir"
done
