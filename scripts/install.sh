#!/bin/bash
# install.sh: bin/hawser and its links into $DESTDIR$PREFIX (default /opt/cni/bin), as "hawser install" does it; options
# may be in the environment, as HAWSER_LINKS. SEPARATE=1 installs a file for each plugin instead.
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
if [ "${SEPARATE:-}" != 1 ]; then
	rc=0
	bin/hawser install --to "$dest" || rc=$?
	[ $rc != 126 ] || echo "install: bin/hawser is of another architecture than this machine: SEPARATE=1 does not run it" >&2
	[ $rc != 0 ] || [ -n "${DESTDIR:-}" ] || command -v hawser >/dev/null ||
		echo "install: hawser is not in PATH: ln -s $dest/hawser /usr/local/bin/"
	exit $rc
fi
mkdir -p "$dest"
tmp=
trap 'rm -f ${tmp:+"$tmp"}' EXIT
for link in bin/one/*; do # one for each plugin
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
