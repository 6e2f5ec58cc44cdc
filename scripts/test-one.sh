#!/bin/bash
# test-one.sh: runs the specs of whole plugin lists with all plugins as one program, which runs IPAM in-process.
set -euo pipefail
cd "$(dirname "$0")/.."

HAWSER_BIN=$PWD/bin/one exec scripts/test.sh test/{faults,load,lifecycle,cost}
