#!/bin/bash
# install.sh: installs bin/hawser and its links into $DESTDIR$PREFIX (default /opt/cni/bin) with "hawser install", which
# reads its options from the environment (HAWSER_LINKS). SEPARATE=1 installs a separate program for each plugin instead.
set -euo pipefail
cd "$(dirname "$0")/.."

if command -v go >/dev/null; then
	scripts/build.sh
elif compgen -G 'bin/*' >/dev/null; then
	echo "install: go not found (usual under sudo); installing the existing bin/" >&2
else
	echo "install: go not found, and bin/ is empty; run make first" >&2
	exit 1
fi
dest=${DESTDIR:-}${PREFIX:-/opt/cni/bin}
if [ "${SEPARATE:-}" != 1 ]; then
	rc=0
	bin/hawser install --to "$dest" || rc=$?
	[ $rc != 126 ] || echo "install: cannot run bin/hawser on this architecture; use SEPARATE=1, which does not run it" >&2
	[ $rc != 0 ] || [ -n "${DESTDIR:-}" ] || command -v hawser >/dev/null ||
		echo "install: hawser is not in PATH; to add it: ln -s $dest/hawser /usr/local/bin/"
	exit $rc
fi
mkdir -p "$dest"
tmp=
trap 'rm -f ${tmp:+"$tmp"}' EXIT
for link in bin/one/*; do # one link for each plugin
	plugin=${link##*/}
	tmp=$(mktemp "$dest/.hawser.XXXXXX")
	cp "bin/$plugin" "$tmp"
	chmod 0755 "$tmp"
	sync "$tmp"
	mv -fT "$tmp" "$dest/$plugin"
	echo "$dest/$plugin"
done
tmp=
sync "$dest"
