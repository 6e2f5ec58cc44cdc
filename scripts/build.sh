#!/bin/bash
# build.sh [DIR]: into DIR (bin/) every plugin below plugins/ as a program of its own, all of them as one, hawser, and
# in DIR/one that one under the name of each; static and stripped. GOARCH and VERSION are taken from the environment.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${VERSION:-$(scripts/version.sh)}
dir=${1:-bin}
export CGO_ENABLED=0 GOOS=linux
mkdir -p "$dir/one"
for main in plugins/*/*/main.go cmd/hawser/main.go; do
	[ -e "$main" ] || { echo "build: no $main" >&2; exit 1; }
	program=${main%/main.go}
	go build -trimpath -buildvcs=false -o "$dir/${program##*/}" \
		-ldflags "-s -w -X 'github.com/hawser-cni/plugins/pkg/skel.stamp=hawser-cni version ${version#v};'" "./$program"
done
for main in plugins/*/*/main.go; do
	plugin=${main%/main.go}
	ln -f "$dir/hawser" "$dir/one/${plugin##*/}"
done
