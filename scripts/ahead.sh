#!/bin/bash
# ahead.sh: downloads the modules and compiles the packages that later steps of .ci/run need. It runs in the background
# of make test-all and make test-one, which mostly wait for the kernel.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/clients.sh cnitool containerd multus
CGO_ENABLED=0 GOFLAGS=$(scripts/flags.sh | paste -sd ' ') # as lint.sh
export CGO_ENABLED GOFLAGS
find . -name go.mod -not -path './.git/*' -printf '%h\n' | sort | while read -r module; do
	scripts/modules.sh "$module" </dev/null
	(cd "$module" && go vet ./...) </dev/null
done
