#!/bin/bash
# install.sh: bin/ into $DESTDIR$PREFIX (default /opt/cni/bin). A plugin that runs
# at this moment is not truncated: each file is complete before it takes its name.
set -euo pipefail
cd "$(dirname "$0")/.."

if command -v go >/dev/null; then
	scripts/build.sh
elif compgen -G 'bin/*' >/dev/null; then
	echo "install: no go here, as usual under sudo: bin/ is installed as it is" >&2
else
	echo "install: no go here, and nothing in bin/: run make first" >&2
	exit 1
fi
dest=${DESTDIR:-}${PREFIX:-/opt/cni/bin}
mkdir -p "$dest"
tmp=
trap 'rm -f ${tmp:+"$tmp"}' EXIT
for plugin in bin/*; do
	tmp=$(mktemp "$dest/.hawser.XXXXXX")
	cp "$plugin" "$tmp"
	chmod 0755 "$tmp"
	sync "$tmp"
	mv -fT "$tmp" "$dest/${plugin##*/}"
done
tmp=
sync "$dest"
echo "installed in $dest:" bin/*
