#!/bin/bash
# version.sh: the version of this tree: the tag, else VERSION and the commit, else
# VERSION (a tree without history).
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(<VERSION)
# A tree unpacked inside somebody else's repository must not take its name.
if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$PWD" ]; then
	version=$(git describe --tags --match 'v*' --dirty 2>/dev/null ||
		echo "$version+$(git describe --always --dirty)")
fi
echo "${version#v}"
