#!/bin/bash
# upgrade-under-load.sh [ATTACHMENTS]: upgrades a node with ATTACHMENTS (200) live attachments to this build with
# "hawser install" and downgrades it again, while pods start and stop. It does so from the newest reference plugins,
# from the release before, and from Hawser 0.1.0, built from the last commit of that version. Live attachments must pass
# CHECK and have traffic, no connection may break, and nothing may be left. Prints the figures. Runs in namespaces and
# needs root.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh
newest=$(scripts/reference.sh)
before=$(scripts/reference.sh before)
scripts/build.sh
first=${XDG_CACHE_HOME:-$HOME/.cache}/hawser/hawser-0.1.0
if [ ! -d "$first" ]; then
	commit=$(git log -1 --format=%H -S0.1.0-dev -- VERSION)^ # the parent of the commit that removed this version
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir "$work/tree"
	git archive "$commit" | tar -x -C "$work/tree"
	VERSION=0.1.0 scripts/retry.sh "$work/tree/scripts/build.sh" "$work/bin" >&2
	mv -T "$work/bin" "$first"
fi
export HAWSER_FORMER="${newest##*/}=$newest ${before##*/}=$before ${first##*/}=$first" HAWSER_ATTACHMENTS=${1:-200}
export HAWSER_BIN=$PWD/bin NSTEST_REQUIRE=all GINKGO_NO_COLOR=TRUE
cd test
go test -count=1 -timeout 2h -v ./load -ginkgo.timeout 2h -ginkgo.label-filter upgrade-load
