#!/bin/bash
# schema.sh: writes docs/schema/*.json from the types that the plugins decode into.
set -euo pipefail
cd "$(dirname "$0")/.."

UPDATE=1 go test -count=1 ./pkg/cni ./pkg/skel ./plugins/{ipam,main,meta}/... --ginkgo.focus=docs/schema
