#!/bin/bash
# build.sh [DIR [PROGRAM...]]: builds static, stripped programs into DIR (bin/): every plugin below plugins/ and hawser.
# hawser contains all plugins except cluster-local, and DIR/one has a link to it for each of these. With PROGRAM,
# only the named programs are built, such as cmd/cni-conformance, which is for plugin authors and in no release archive.
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
# On amd64, functions aligned at 16 instead of 32 bytes make hawser 102 kB smaller, at 4 bytes 170 kB, at 2 182 kB.
# In 300 pairs of calls each, VERSION, ADD and DEL of bridge took no more CPU time with 8 than with 32, and with 4 than
# with 8. Neither did ADD, CHECK and DEL of loopback with 2. Other architectures may need 16.
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
