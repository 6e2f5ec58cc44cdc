#!/bin/bash
# build.sh [DIR [PROGRAM...]]: builds static, stripped programs into DIR (bin/): every plugin below plugins/ and hawser.
# hawser contains all plugins except cluster-local, and DIR/one has a link to it under the name of each. With PROGRAM,
# it builds only these, such as cmd/cni-conformance, which is for plugin authors and not part of a release archive.
# GOARCH and VERSION come from the environment.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${VERSION:-$(scripts/version.sh)}
dir=${1:-bin}
export CGO_ENABLED=0 GOOS=linux
mapfile -t flags < <(scripts/flags.sh)
mains=("${@:2}")
[ $# -gt 1 ] || mains=(plugins/*/*/main.go cmd/hawser/main.go)
programs=()
for main in "${mains[@]}"; do
	program=${main%/main.go}
	[ -e "$program/main.go" ] || { echo "build: $program/main.go does not exist" >&2; exit 1; }
	programs+=("./$program")
done
# Functions aligned at 4 instead of 32 bytes make hawser 170 kB smaller on amd64, and at 2 bytes another 12 kB; an
# alignment of 16 saves 102 kB. In 300 pairs of calls each, VERSION, ADD and DEL of bridge took no more CPU time with 8
# than with 32, or with 4 than with 8, nor did ADD, CHECK and DEL of loopback with 2. Other processors may need 16.
align=16
[ "$(go env GOARCH)" != amd64 ] || align=2
go build "${flags[@]}" -buildvcs=false -o "$dir/" \
	-ldflags "-s -w -funcalign=$align -X 'github.com/hawser-cni/plugins/pkg/skel.stamp=hawser-cni version ${version#v};'" "${programs[@]}"
[ $# -le 1 ] || exit 0
mkdir -p "$dir/one"
for main in plugins/*/*/main.go; do
	plugin=${main%/main.go}
	[ "${plugin##*/}" != cluster-local ] || continue # uses TLS, so it is not part of hawser
	ln -f "$dir/hawser" "$dir/one/${plugin##*/}"
done
