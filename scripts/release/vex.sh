#!/bin/bash
# vex.sh [DIST]: writes hawser-VERSION.openvex.json into DIST (dist). It lists the known vulnerabilities that affect
# this tree's plugins, and those of linked modules that do not. It is as current as the vulnerability database, so you
# can create it again for an old release, from its tag or source archive. GOVULNDB selects another database, and
# SIGNING_KEY signs the document. If vuln.go.dev cannot be reached, scripts/vulndb.sh creates the database from its
# source. The exit status is 3 if that fails too, or if GOVULNDB cannot be reached.
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
scan() {
	GOOS=linux CGO_ENABLED=0 "$work/govulncheck" ${GOVULNDB:+-db="$GOVULNDB"} -format openvex ./plugins/... ./cmd/... \
		>"$work/found" 2>"$work/log"
}
database=${GOVULNDB:-vuln.go.dev}
if ! scan; then
	cat "$work/log" >&2
	grep -qE '^(govulncheck: fetching vulnerabilities|creating client)' "$work/log" || exit 1
	if [ -n "${GOVULNDB:-}" ] || ! module=$(scripts/vulndb.sh "$work/db"); then
		echo "vex: cannot reach the vulnerability database $database" >&2
		exit 3
	fi
	database=pkg:golang/golang.org/x/vulndb@$module
	echo "vex: cannot reach vuln.go.dev; using $database" >&2
	GOVULNDB=file://$work/db scan || { cat "$work/log" >&2; exit 1; }
fi
"$work/vex" -product "pkg:golang/github.com/hawser-cni/plugins@v${VERSION//+/%2B}" -database "$database" \
	-author "The Hawser developers <hawser-cni@users.noreply.github.com>" <"$work/found" >"$file"
scripts/release/sign.sh "$file"
mkdir -p "$dist"
mv "$work"/out/* "$dist/"
