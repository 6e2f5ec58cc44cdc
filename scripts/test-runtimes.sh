#!/bin/bash
# test-runtimes.sh: the plugins under containerd, podman and buildah from Debian, a containerd 2
# and cnitool and multus built here, on throw-away hosts in namespaces of their own. Needs root. The first
# run compiles containerd, which takes minutes. ALL=1 adds what takes longer: BuildKit, CRI-O, nerdctl, a kubelet and
# critest, compiled here too; the newest reference plugins under the same clients, and a table of both at the end.
# TESTFLAGS go to go test; HAWSER_CONTAINERD is a directory with another containerd 2.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh buildah busybox-static containerd containernetworking-plugins curl iproute2 nftables podman procps runc \
	slirp4netns uidmap util-linux
scripts/reference.sh >/dev/null
scripts/modules.sh scripts/image test/runtimes
scripts/build.sh
export HAWSER_BIN=$PWD/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ARCHS=$(go env GOARCH) VERSION=9.8.7 scripts/image.sh "$work"
export HAWSER_IMAGE=$work/hawser-9.8.7-oci.tar
[ -n "${HAWSER_CONTAINERD:-}" ] || HAWSER_CONTAINERD=$(scripts/clients.sh containerd)
export HAWSER_CONTAINERD
clients=(cnitool multus)
filter='!all'
if [ -n "${ALL:-}" ]; then
	filter=''
	scripts/deps.sh conmon gcc libc6-dev
	clients+=(buildkit cri-tools crio kubelet nerdctl)
	export HAWSER_TABLE=$work/table
fi
built=$(scripts/clients.sh "${clients[@]}")
export PATH=$PATH:$built

[ -t 1 ] || export GINKGO_NO_COLOR=TRUE
cd test/runtimes
export CGO_ENABLED=0 # as test.sh
read -ra flags <<<"$(../../scripts/flags.sh | paste -sd ' ') -vet=off ${TESTFLAGS:-}"
go test -count=1 -timeout 30m . -ginkgo.label-filter="$filter" "${flags[@]}"
[ -z "${ALL:-}" ] || { echo "| client | what was run | with ours | with the newest reference |"; cat "$HAWSER_TABLE"; }
