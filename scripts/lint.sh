#!/bin/bash
# lint.sh: gofmt -s, go vet and staticcheck in every module; the width, spelling and style of documents and comments
# (scripts/mdwrap, scripts/prose); shellcheck of all scripts; licenses and known vulnerabilities of linked modules. A check
# whose program or data cannot be downloaded is skipped with a message; in CI, only the check for vulnerabilities is.
# GOVULNDB selects another database.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=/dev/null
. scripts/toolchain.sh

staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
misspell=github.com/golangci/misspell/cmd/misspell@v0.8.0
vale=github.com/vale-cli/vale/v3/cmd/vale@v3.21.0
CGO_ENABLED=0 GOFLAGS=$(scripts/flags.sh | paste -sd ' ') # what the tests have compiled is not compiled again
export CGO_ENABLED GOFLAGS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
without() { echo "lint: $1 cannot be had, so $2: $(tail -n 1 "$work/log")" >&2; }

unformatted=$(gofmt -s -l .)
[ -z "$unformatted" ] || { echo "lint: gofmt -s -w" "$unformatted" >&2; exit 1; }
GOBIN=$work scripts/retry.sh go install "$staticcheck" 2>"$work/log" || { without "$staticcheck" "it was not run"; [ -z "${CI:-}" ]; }
if GOBIN=$work scripts/retry.sh go install "$misspell" 2>"$work/log"; then
	# ageing is the kernel's word.
	git ls-files -z '*.md' | xargs -0 "$work/misspell" -locale US -i ageing -error
	git ls-files -z '*.go' | xargs -0 "$work/misspell" -locale US -i ageing -source go -error
else
	without "$misspell" "spelling was not checked"
	[ -z "${CI:-}" ]
fi
go build -o "$work/mdwrap" ./scripts/mdwrap
if ! git ls-files -z '*.md' | xargs -0 "$work/mdwrap" >"$work/pages"; then
	echo "lint: go run ./scripts/mdwrap -w $(paste -sd ' ' "$work/pages")" >&2
	exit 1
fi
scripts/deps.sh g++ # vale has parsers in C and C++
if GOBIN=$work GOFLAGS="" CGO_ENABLED=1 scripts/retry.sh go install "$vale" 2>"$work/log"; then
	git ls-files -z '*.md' '*.go' ':!*_test.go' |
		xargs -0 "$work/vale" --config scripts/prose/vale.ini --output line --no-wrap
else
	without "$vale" "style was not checked"
	[ -z "${CI:-}" ]
fi
find . -name go.mod -not -path './.git/*' -printf '%h\n' | sort | while read -r module; do
	echo "lint: module $module"
	if ! scripts/modules.sh "$module" 2>"$work/log" </dev/null; then
		without "what it imports" "it was not looked at"
		[ -z "${CI:-}" ]
		continue
	fi
	(cd "$module" && go vet ./... && { [ ! -x "$work/staticcheck" ] || "$work/staticcheck" ./...; }) </dev/null
done
scripts/deps.sh shellcheck
if command -v shellcheck >/dev/null; then
	# Not bin and dist, in which other steps may be replacing files.
	find . \( -path ./.git -o -path ./bin -o -path ./dist \) -prune -o -type f -not -name '*.tmpl' -exec awk 'FNR == 1 && /^#!.*sh$/ { printf "%s%c", FILENAME, 0 } { nextfile }' {} + |
		xargs -0 shellcheck
else
	echo "lint: no shellcheck here, scripts were not checked" >&2
fi

scripts/build.sh "$work/plugins"
scripts/build.sh "$work/plugins" cmd/cni-conformance
rm -r "$work/plugins/one" # the same once more
echo "lint: licenses of what is linked"
if (cd scripts/bom && go build -o "$work/bom" .) 2>"$work/log"; then
	"$work/bom" "$work"/plugins/*
else
	without scripts/bom "no license was looked at"
	[ -z "${CI:-}" ]
fi
(cd scripts/bom && ../retry.sh go build -o "$work/" golang.org/x/vuln/cmd/govulncheck) 2>"$work/log" ||
	{ without govulncheck "no vulnerability was looked up"; exit 0; }
look() { CGO_ENABLED=0 "$work/govulncheck" ${GOVULNDB:+-db="$GOVULNDB"} ./plugins/... ./cmd/... >"$work/report" 2>&1; }
rc=0
look || rc=$?
if grep -q '^govulncheck: fetching vulnerabilities' "$work/report"; then
	if [ -n "${GOVULNDB:-}" ] || ! version=$(scripts/vulndb.sh "$work/vulndb"); then
		echo "lint: the database of vulnerabilities cannot be reached: none were looked up" >&2
		exit
	fi
	echo "lint: vulnerabilities of golang.org/x/vulndb@$version"
	rc=0
	GOVULNDB=file://$work/vulndb look || rc=$?
fi
cat "$work/report"
exit $rc
