#!/bin/bash
# build.sh [DIR [PROGRAM...]]: into DIR (bin/) every plugin below plugins/ as a program of its own, all of them but
# cluster-local as one, hawser, and in DIR/one that one under the name of each; or these programs alone. They are static
# and stripped.
# GOARCH and VERSION are taken from the environment.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${VERSION:-$(scripts/version.sh)}
dir=${1:-bin}
export CGO_ENABLED=0 GOOS=linux
# What a start does not run is smaller with nothing inlined: by 4 % of the file and 6 % of an archive.
small=()
for packages in github.com/{vishvananda,spf13,godbus,insomniacslk,coreos,mdlayher,pierrec,u-root} text log \
	golang.org/x/{net,sync,mod} github.com/hawser-cni/plugins/{plugins,cmd} \
	github.com/hawser-cni/plugins/pkg/{attach,frame,iface,ipam,ipt,masq,ns,process,ranges,rtnl,statefile,sysctl,tun}; do
	small+=("-gcflags=$packages/...=-l")
done
for package in encoding/csv flag net net/url os/user; do
	small+=("-gcflags=$package=-l")
done
mains=("${@:2}")
[ $# -gt 1 ] || mains=(plugins/*/*/main.go cmd/hawser/main.go)
for main in "${mains[@]}"; do
	program=${main%/main.go}
	[ -e "$program/main.go" ] || { echo "build: no $program/main.go" >&2; exit 1; }
	go build -trimpath -buildvcs=false "${small[@]}" -o "$dir/${program##*/}" \
		-ldflags "-s -w -X 'github.com/hawser-cni/plugins/pkg/skel.stamp=hawser-cni version ${version#v};'" "./$program"
done
[ $# -le 1 ] || exit 0
mkdir -p "$dir/one"
for main in plugins/*/*/main.go; do
	plugin=${main%/main.go}
	[ "${plugin##*/}" != cluster-local ] || continue # speaks TLS: it is an artifact of its own
	ln -f "$dir/hawser" "$dir/one/${plugin##*/}"
done
