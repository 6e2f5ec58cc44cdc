#!/bin/bash
# test-cluster.sh: tests cluster-local with an API server and etcd. The first run builds the server from Kubernetes'
# library into the user's cache, which takes minutes. etcd is Debian's, without its service.
#
# Environment:
#   BENCH=1     run the benchmark instead of the tests
#   HAWSER_BIN  directory into which the plugins are built (bin/)
#   TESTFLAGS   flags for go test
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/hawser
sum=$(cat test/kube/go.mod test/kube/apiserver/*.go | sha256sum | cut -c1-16)
export HAWSER_APISERVER=$cache/apiserver-$sum HAWSER_ETCD HAWSER_BIN=${HAWSER_BIN:-$PWD/bin}
mkdir -p "$cache"
exec 9>"$cache/.cluster.lock"
flock 9
if [ ! -x "$HAWSER_APISERVER" ]; then
	echo "test-cluster: building the API server"
	(cd test/kube && CGO_ENABLED=0 ../../scripts/retry.sh go build -tags apiserver -trimpath -ldflags '-s -w' \
		-o "$HAWSER_APISERVER.new" ./apiserver)
	mv "$HAWSER_APISERVER.new" "$HAWSER_APISERVER"
fi
HAWSER_ETCD=$(command -v etcd || echo "$cache/etcd/usr/bin/etcd")
if [ ! -x "$HAWSER_ETCD" ]; then
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	(cd "$work" && apt-get download etcd-server)
	dpkg-deb -x "$work"/*.deb "$work/etcd"
	rm -rf "$cache/etcd"
	mv "$work/etcd" "$cache/etcd"
fi
flock -u 9
scripts/build.sh "$HAWSER_BIN" plugins/ipam/{cluster-local,host-local}
[ -t 1 ] || export GINKGO_NO_COLOR=TRUE
read -ra flags <<<"${TESTFLAGS:-}"
specs='!cluster-bench'
[ -z "${BENCH:-}" ] || { specs=cluster-bench; flags+=(-v); }
cd test/kube
NSTEST_REQUIRE=1 go test -count=1 -timeout 20m -ginkgo.label-filter="$specs" "${flags[@]}" .
