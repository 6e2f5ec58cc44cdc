#!/bin/bash
# help.sh: the targets of the Makefile, each with its comment.
set -euo pipefail
cd "$(dirname "$0")/.."

sed -n 's/^\([a-z-]*\): .*#: /make \1\t/p' Makefile | expand -t 20
