#!/bin/bash
# lint.sh: gofmt -s, go vet, staticcheck in every module; shellcheck of all scripts.
set -euo pipefail
cd "$(dirname "$0")/.."

staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
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
