#!/bin/bash
# vex.sh [DIST]: into DIST (dist) hawser-VERSION.openvex.json: which known vulnerabilities this tree's plugins have, and
# which of what they are linked from do not concern them. It is as new as the database, so it can be made again for
# an old release, from its tag or from its source archive. GOVULNDB is another database; SIGNING_KEY signs it. Without
# GOVULNDB, scripts/vulndb.sh replaces a database that cannot be reached. The exit status is 3 if it cannot either.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=/dev/null
. scripts/release/environment.sh

scripts/release/sign.sh
dist=${1:-dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd scripts/bom && CGO_ENABLED=0 ../retry.sh go build -o "$work/" ./vex golang.org/x/vuln/cmd/govulncheck)
mkdir "$work/out"
file=$work/out/hawser-$VERSION.openvex.json
look() {
	GOOS=linux CGO_ENABLED=0 "$work/govulncheck" ${GOVULNDB:+-db="$GOVULNDB"} -format openvex ./plugins/... ./cmd/... \
		>"$work/found" 2>"$work/log"
}
database=${GOVULNDB:-vuln.go.dev}
if ! look; then
	cat "$work/log" >&2
	grep -qE '^(govulncheck: fetching vulnerabilities|creating client)' "$work/log" || exit 1
	if [ -n "${GOVULNDB:-}" ] || ! module=$(scripts/vulndb.sh "$work/db"); then
		echo "vex: the database of vulnerabilities cannot be reached" >&2
		exit 3
	fi
	database=pkg:golang/golang.org/x/vulndb@$module
	echo "vex: using the source of the database, $database" >&2
	GOVULNDB=file://$work/db look || { cat "$work/log" >&2; exit 1; }
fi
"$work/vex" -product "pkg:golang/github.com/hawser-cni/plugins@v${VERSION//+/%2B}" -database "$database" \
	-author "The Hawser developers <hawser-cni@users.noreply.github.com>" <"$work/found" >"$file"
scripts/release/sign.sh "$file"
mkdir -p "$dist"
mv "$work"/out/* "$dist/"
