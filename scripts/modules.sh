#!/bin/bash
# modules.sh DIR...: downloads the modules that the packages and tests of the Go modules in these directories import.
set -euo pipefail
cd "$(dirname "$0")/.."
retry=$PWD/scripts/retry.sh
for dir; do
	(cd "$dir" && "$retry" go list -deps -test ./... >/dev/null)
done
