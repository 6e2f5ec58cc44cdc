#!/bin/bash
# test-runtimes.sh: tests the plugins under Debian's containerd, podman and buildah, and under containerd 2, cnitool and
# multus, on throw-away hosts in their own namespaces. Needs root. The first run compiles containerd 2, which takes
# minutes.
#
# Environment:
#   ALL=1              also test under BuildKit, CRI-O, nerdctl, a kubelet and critest, which are compiled first; test
#                      the newest reference plugins under the same clients; and print a table of both
#   HAWSER_CONTAINERD  directory of another containerd 2
#   TESTFLAGS          flags for go test
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
[ -z "${ALL:-}" ] || { echo "| client | test | with Hawser | with the newest reference |"; cat "$HAWSER_TABLE"; }
