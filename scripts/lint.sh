#!/bin/bash
# lint.sh: gofmt -s, go vet, staticcheck in both modules; shellcheck of all scripts.
set -euo pipefail
cd "$(dirname "$0")/.."

staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
unformatted=$(gofmt -s -l .)
[ -z "$unformatted" ] || { echo "lint: gofmt -s -w" "$unformatted" >&2; exit 1; }
for module in . test; do
	[ -f "$module/go.mod" ] || continue
	(cd "$module" && go vet ./... && go run "$staticcheck" ./...)
done
scripts/deps.sh shellcheck
if command -v shellcheck >/dev/null; then
	find . -name '*.sh' -not -path './.git/*' -exec shellcheck {} +
	shellcheck .ci/run
else
	echo "lint: no shellcheck here, scripts were not checked" >&2
fi
