#!/bin/bash
# version.sh: the version of this tree: the tag, or the tag and what came since; where
# there is no tag VERSION and the commit; where there is no history VERSION.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(<VERSION)
# A tree unpacked inside somebody else's repository must not take its name. The length
# of a commit's name is fixed, because git's own choice depends on the clone.
if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$PWD" ]; then
	if tag=$(git describe --tags --match 'v*' --long --abbrev=12 --dirty=.dirty 2>/dev/null); then
		version=$(sed -E 's/-0-g[0-9a-f]+$//; s/-([0-9]+)-g([0-9a-f]+(\.dirty)?)$/+\1.g\2/; s/(\+.*)\+/\1./' <<<"$tag")
	else
		version+=+g$(git describe --always --exclude '*' --abbrev=12 --dirty=.dirty)
	fi
fi
echo "${version#v}"
