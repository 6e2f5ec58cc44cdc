#!/bin/bash
# clients.sh PROGRAM...: builds programs that call the plugins and that Debian does not package, unless they exist in
# the user's cache. Prints their directories, separated by colons. PROGRAM is buildkit, cnitool, containerd (version 2),
# crio, cri-tools, kubelet, multus or nerdctl.
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hawser
export CGO_ENABLED=0 GOFLAGS='' GOWORK=off
mkdir -p "$cache"
exec 9>"$cache/.clients.lock"
flock 9
work=$(mktemp -d "$cache/.clients.XXXXXX")
trap 'rm -rf "$work"' EXIT

# source_of MODULE@VERSION prints the directory of the module's source. go install would need the module's list of
# versions, which is not available everywhere.
source_of() { "$scripts/retry.sh" go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }

# add_client PROGRAM MODULE VERSION appends the program's directory to found. If the directory does not exist, it calls
# build_PROGRAM with the source directory and an empty output directory.
add_client() {
	local dir=$cache/$1-$3
	if [ ! -d "$dir" ]; then
		local src
		src=$(source_of "$2@$3")
		mkdir "$work/$1"
		"build_$1" "$src" "$work/$1" >&2
		mv -T "$work/$1" "$dir"
	fi
	found+=("$dir")
}

build_cnitool() { "$scripts/retry.sh" go build -C "$1" -trimpath -o "$2/cnitool" ./cnitool; }

# Only the plugin, because multus's daemon needs an API server.
build_multus() { "$scripts/retry.sh" go build -C "$1" -mod=mod -trimpath -ldflags '-s -w' -o "$2/multus" ./cmd/multus; }

build_buildkit() {
	"$scripts/retry.sh" go build -C "$1" -trimpath -ldflags '-s -w' -o "$2/" ./cmd/buildkitd ./cmd/buildctl
}

build_containerd() {
	"$scripts/retry.sh" go build -C "$1" -trimpath -ldflags '-s -w' -o "$2/" \
		./cmd/containerd ./cmd/containerd-shim-runc-v2 ./cmd/ctr
}

# Includes pinns, a C program that pins the namespaces of pods.
build_crio() {
	"$scripts/retry.sh" go build -C "$1" -trimpath -ldflags '-s -w' -o "$2/crio" \
		-tags containers_image_ostree_stub,exclude_graphdriver_btrfs,containers_image_openpgp ./cmd/crio
	gcc -std=c99 -Os -static -o "$2/pinns" "$1"/pinns/src/*.c
}

# Builds crictl and critest.
build_cri-tools() {
	"$scripts/retry.sh" go build -C "$1" -trimpath -o "$2/crictl" ./cmd/crictl
	"$scripts/retry.sh" go test -C "$1" -c -trimpath -o "$2/critest" ./cmd/critest
}

# go.mod replaces modules with directories of staging/, which the module's archive lacks.
build_kubelet() {
	cp -r --no-preserve=mode "$1" "$work/kubernetes"
	sed -i "s,=> ./staging/src/\(.*\),=> \1 v0.${1##*@v1.}," "$work/kubernetes/go.mod"
	"$scripts/retry.sh" go build -C "$work/kubernetes" -mod=mod -trimpath -ldflags '-s -w' -o "$2/kubelet" ./cmd/kubelet
}

# go.mod replaces a module that only tests use with a directory that the module's archive lacks.
build_nerdctl() {
	cp -r --no-preserve=mode "$1" "$work/source"
	rm "$work"/source/cmd/nerdctl/helpers/testing*.go
	local tests=github.com/containerd/nerdctl/mod/tigron
	go mod edit -droprequire=$tests -dropreplace=$tests@v0.0.0 "$work/source/go.mod"
	"$scripts/retry.sh" go build -C "$work/source" -mod=mod -trimpath -ldflags '-s -w' -o "$2/nerdctl" ./cmd/nerdctl
}

found=()
for program; do
	case $program in
	cnitool) add_client cnitool github.com/containernetworking/cni v1.3.1 ;;
	containerd) add_client containerd github.com/containerd/containerd/v2 v2.4.2 ;;
	crio) add_client crio github.com/cri-o/cri-o v1.34.0 ;;
	cri-tools) add_client cri-tools sigs.k8s.io/cri-tools v1.37.0 ;;
	multus) add_client multus gopkg.in/k8snetworkplumbingwg/multus-cni.v4 v4.2.4 ;;
	buildkit) add_client buildkit github.com/moby/buildkit v0.34.2 ;;
	nerdctl) add_client nerdctl github.com/containerd/nerdctl/v2 v2.2.2 ;;
	kubelet) add_client kubelet k8s.io/kubernetes v1.37.2 ;;
	*)
		echo "clients: unknown program $program" >&2
		exit 2
		;;
	esac
done
(
	IFS=:
	echo "${found[*]}"
)
