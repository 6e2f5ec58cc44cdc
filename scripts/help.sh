#!/bin/bash
# help.sh: prints the targets of the Makefile with their comments.
set -euo pipefail
cd "$(dirname "$0")/.."

sed -n 's/^\([a-z-]*\): .*#: /make \1\t/p' Makefile | expand -t 20
