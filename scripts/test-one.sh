#!/bin/bash
# test-one.sh: the specs of whole lists of plugins, with all plugins as one program, where IPAM is in process.
set -euo pipefail
cd "$(dirname "$0")/.."

HAWSER_BIN=$PWD/bin/one exec scripts/test.sh test/{faults,load,lifecycle,cost}
