#!/bin/bash
# reference.sh [before]: builds the reference plugins of the release that Hawser matches, or of the release before it,
# unless they exist in the user's cache. It prints their directory. Without a network it prints the reason to stderr:
# specs that need the plugins skip, and fail where NSTEST_REQUIRE is set.
set -euo pipefail

cd "$(dirname "$0")/.."
case ${1:-} in
'') version=$(sed -n 's/^const Reference = "\(.*\)"$/\1/p' pkg/skel/skel.go) ;;
before) version=$(sed -n 's/^const before = "\(.*\)"$/\1/p' pkg/nstest/need.go) ;;
*) echo "reference: unknown argument $1" >&2; exit 2 ;;
esac
[ -n "$version" ] || { echo "reference: no constant with the release found in the source" >&2; exit 1; }
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hawser
dir=$cache/reference-$version
echo "$dir"
mkdir -p "$cache"
exec 9>"$cache/.reference.lock"
flock 9
[ ! -d "$dir" ] || exit 0
work=$(mktemp -d "$cache/.reference.XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! GOBIN=$work/bin CGO_ENABLED=0 GOFLAGS='' GOWORK=off scripts/retry.sh go install -trimpath \
	"github.com/containernetworking/plugins/plugins/"{main,ipam,meta}"/...@$version" >"$work/log" 2>&1; then
	echo "reference: cannot download or build containernetworking/plugins $version: $(tail -n 1 "$work/log")" >&2
	exit 0
fi
# Install copies, because a file written by the Go linker starts a tenth slower.
cp -r "$work/bin" "$work/copies"
chmod 755 "$work/copies"
mv -T "$work/copies" "$dir"
