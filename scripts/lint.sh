#!/bin/bash
# lint.sh: checks every module with gofmt -s, go vet and staticcheck; line width, spelling and style of documents and
# comments (scripts/mdwrap, misspell, scripts/prose); all scripts with shellcheck; and the licenses and known
# vulnerabilities of linked modules. A check whose program or data cannot be downloaded is skipped with a message. If CI
# is set, the script then fails, except for shellcheck and the vulnerability check.
#
# Environment:
#   GOVULNDB  URL of the vulnerability database (vuln.go.dev, or the module that scripts/vulndb.sh downloads)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=/dev/null
. scripts/toolchain.sh

staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
misspell=github.com/golangci/misspell/cmd/misspell@v0.8.0
vale=github.com/vale-cli/vale/v3/cmd/vale@v3.21.0
CGO_ENABLED=0 GOFLAGS=$(scripts/flags.sh | paste -sd ' ') # as test.sh, to use its build cache
export CGO_ENABLED GOFLAGS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
skip() { echo "lint: cannot download or build $1; skipping $2: $(tail -n 1 "$work/log")" >&2; }

unformatted=$(gofmt -s -l .)
[ -z "$unformatted" ] || { echo "lint: run gofmt -s -w" "$unformatted" >&2; exit 1; }
GOBIN=$work scripts/retry.sh go install "$staticcheck" 2>"$work/log" ||
	{ skip "$staticcheck" "its checks"; [ -z "${CI:-}" ]; }
if GOBIN=$work scripts/retry.sh go install "$misspell" 2>"$work/log"; then
	# The kernel spells it "ageing".
	git ls-files -z '*.md' | xargs -0 "$work/misspell" -locale US -i ageing -error
	git ls-files -z '*.go' | xargs -0 "$work/misspell" -locale US -i ageing -source go -error
else
	skip "$misspell" "the spelling check"
	[ -z "${CI:-}" ]
fi
go build -o "$work/mdwrap" ./scripts/mdwrap
if ! git ls-files -z '*.md' | xargs -0 "$work/mdwrap" >"$work/pages"; then
	echo "lint: run go run ./scripts/mdwrap -w $(paste -sd ' ' "$work/pages")" >&2
	exit 1
fi
scripts/deps.sh g++ # for the C and C++ parsers of vale
if GOBIN=$work GOFLAGS="" CGO_ENABLED=1 scripts/retry.sh go install "$vale" 2>"$work/log"; then
	git ls-files -z '*.md' '*.go' ':!*_test.go' |
		xargs -0 "$work/vale" --config scripts/prose/vale.ini --output line --no-wrap
else
	skip "$vale" "the style check"
	[ -z "${CI:-}" ]
fi
find . -name go.mod -not -path './.git/*' -printf '%h\n' | sort | while read -r module; do
	echo "lint: module $module"
	if ! scripts/modules.sh "$module" 2>"$work/log" </dev/null; then
		skip "the imports of $module" "its checks"
		[ -z "${CI:-}" ]
		continue
	fi
	(cd "$module" && go vet ./... && { [ ! -x "$work/staticcheck" ] || "$work/staticcheck" ./...; }) </dev/null
done
scripts/deps.sh shellcheck
if command -v shellcheck >/dev/null; then
	# bin and dist are excluded because other steps may replace their files.
	find . \( -path ./.git -o -path ./bin -o -path ./dist \) -prune -o -type f -not -name '*.tmpl' \
		-exec awk 'FNR == 1 && /^#!.*sh$/ { printf "%s%c", FILENAME, 0 } { nextfile }' {} + |
		xargs -0 shellcheck
else
	echo "lint: shellcheck is not installed; skipping the check of scripts" >&2
fi

scripts/build.sh "$work/plugins"
scripts/build.sh "$work/plugins" cmd/cni-conformance
rm -r "$work/plugins/one" # the same packages as one program
echo "lint: licenses of linked modules"
if (cd scripts/bom && go build -o "$work/bom" .) 2>"$work/log"; then
	"$work/bom" "$work"/plugins/*
else
	skip scripts/bom "the license check"
	[ -z "${CI:-}" ]
fi
(cd scripts/bom && ../retry.sh go build -o "$work/" golang.org/x/vuln/cmd/govulncheck) 2>"$work/log" ||
	{ skip govulncheck "the vulnerability check"; exit 0; }
find_vulnerabilities() {
	CGO_ENABLED=0 "$work/govulncheck" ${GOVULNDB:+-db="$GOVULNDB"} ./plugins/... ./cmd/... >"$work/report" 2>&1
}
rc=0
find_vulnerabilities || rc=$?
if grep -q '^govulncheck: fetching vulnerabilities' "$work/report"; then
	if [ -n "${GOVULNDB:-}" ] || ! version=$(scripts/vulndb.sh "$work/vulndb"); then
		echo "lint: cannot reach the vulnerability database; skipping the vulnerability check" >&2
		exit
	fi
	echo "lint: vulnerability database golang.org/x/vulndb@$version"
	rc=0
	GOVULNDB=file://$work/vulndb find_vulnerabilities || rc=$?
fi
cat "$work/report"
exit $rc
