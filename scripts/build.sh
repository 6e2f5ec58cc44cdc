#!/bin/bash
# build.sh [DIR]: every plugin below plugins/ into DIR (bin/), static and stripped.
# GOARCH and VERSION are taken from the environment.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${VERSION:-$(scripts/version.sh)}
dir=${1:-bin}
export CGO_ENABLED=0 GOOS=linux
mkdir -p "$dir"
for main in plugins/*/*/main.go; do
	[ -e "$main" ] || { echo "build: no plugins/*/*/main.go" >&2; exit 1; }
	plugin=${main%/main.go}
	go build -trimpath -buildvcs=false -o "$dir/${plugin##*/}" \
		-ldflags "-s -w -X github.com/hawser-cni/plugins/pkg/skel.version=${version#v}" "./$plugin"
done
