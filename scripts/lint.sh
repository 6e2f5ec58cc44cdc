#!/bin/bash
# lint.sh: gofmt -s, go vet, staticcheck in every module; shellcheck of all scripts;
# licences and known vulnerabilities of what is linked. GOVULNDB is another database.
set -euo pipefail
cd "$(dirname "$0")/.."

staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.3.0
unformatted=$(gofmt -s -l .)
[ -z "$unformatted" ] || { echo "lint: gofmt -s -w" "$unformatted" >&2; exit 1; }
find . -name go.mod -not -path './.git/*' -printf '%h\n' | sort | while read -r module; do
	echo "lint: module $module"
	(cd "$module" && go vet ./... && go run "$staticcheck" ./...) </dev/null
done
scripts/deps.sh shellcheck
if command -v shellcheck >/dev/null; then
	find . -name '*.sh' -not -path './.git/*' -exec shellcheck {} +
	shellcheck .ci/run
else
	echo "lint: no shellcheck here, scripts were not checked" >&2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scripts/build.sh "$work/plugins"
(cd scripts/bom && go build -o "$work/bom" .)
echo "lint: licences of what is linked"
"$work/bom" "$work"/plugins/*
GOBIN=$work go install "$govulncheck"
rc=0
CGO_ENABLED=0 "$work/govulncheck" ${GOVULNDB:+-db="$GOVULNDB"} ./plugins/... >"$work/report" 2>&1 || rc=$?
cat "$work/report"
if grep -q '^govulncheck: fetching vulnerabilities' "$work/report"; then
	echo "lint: the database of vulnerabilities cannot be reached: none were looked up" >&2
elif [ $rc != 0 ]; then
	exit $rc
fi
