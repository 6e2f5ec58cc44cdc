#!/bin/bash
# reference.sh: the newest reference plugins that were released, all 18, built static into
# the user's cache, unless they are there; prints the directory. Without a network it says
# so on stderr: specs beside them skip, and fail where NSTEST_REQUIRE is set.
set -euo pipefail

version=v1.9.1 # as in pkg/nstest/build.go
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hawser
dir=$cache/reference-$version
echo "$dir"
mkdir -p "$cache"
exec 9>"$cache/.reference.lock"
flock 9
[ ! -d "$dir" ] || exit 0
work=$(mktemp -d "$cache/.reference.XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! GOBIN=$work/bin CGO_ENABLED=0 GOFLAGS='' GOWORK=off "$(dirname "$0")/retry.sh" go install -trimpath \
	"github.com/containernetworking/plugins/plugins/"{main,ipam,meta}"/...@$version" >"$work/log" 2>&1; then
	echo "reference: github.com/containernetworking/plugins $version cannot be had: $(tail -n 1 "$work/log")" >&2
	exit 0
fi
# Copies: a file as the Go linker writes it starts a tenth slower.
cp -r "$work/bin" "$work/copies"
chmod 755 "$work/copies"
mv -T "$work/copies" "$dir"
