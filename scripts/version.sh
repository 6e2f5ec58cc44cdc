#!/bin/bash
# version.sh: prints the version of this tree: the tag, followed by the commit and the number of commits since the tag
# if there are any. Without a tag, it prints VERSION and the commit; without git history, VERSION.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(<VERSION)
# A tree that was unpacked inside another repository must not get that repository's version. The length of the
# commit's name is fixed, because git's default depends on the clone.
if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$PWD" ]; then
	if tag=$(git describe --tags --match 'v*' --long --abbrev=12 --dirty=.dirty 2>/dev/null); then
		version=$(sed -E 's/-0-g[0-9a-f]+$//; s/-([0-9]+)-g([0-9a-f]+(\.dirty)?)$/+\1.g\2/; s/(\+.*)\+/\1./' <<<"$tag")
	else
		version+=+g$(git describe --always --exclude '*' --abbrev=12 --dirty=.dirty)
	fi
fi
echo "${version#v}"
