#!/bin/bash
# build.sh [DIR [PROGRAM...]]: into DIR (bin/) every plugin below plugins/ as a program of its own, all of them but
# cluster-local as one, hawser, and in DIR/one that one under the name of each; or only these programs, such as
# cmd/cni-conformance, which is for authors of plugins and in no release archive. They are static
# and stripped.
# GOARCH and VERSION are taken from the environment.
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
	[ -e "$program/main.go" ] || { echo "build: no $program/main.go" >&2; exit 1; }
	programs+=("./$program")
done
# Functions that begin at multiples of 4 bytes, not 32, make the one program 170 kB smaller (amd64), of 16 bytes 102 kB.
# In 300 pairs of calls, neither VERSION, ADD nor DEL of bridge took more processor time with 8 than with 32, nor with 4
# than with 8. Other processors may need 16.
align=16
[ "$(go env GOARCH)" != amd64 ] || align=4
go build "${flags[@]}" -buildvcs=false -o "$dir/" \
	-ldflags "-s -w -funcalign=$align -X 'github.com/hawser-cni/plugins/pkg/skel.stamp=hawser-cni version ${version#v};'" "${programs[@]}"
[ $# -le 1 ] || exit 0
mkdir -p "$dir/one"
for main in plugins/*/*/main.go; do
	plugin=${main%/main.go}
	[ "${plugin##*/}" != cluster-local ] || continue # speaks TLS: it is an artifact of its own
	ln -f "$dir/hawser" "$dir/one/${plugin##*/}"
done
