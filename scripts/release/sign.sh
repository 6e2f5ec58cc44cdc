#!/bin/bash
# sign.sh [FILE...]: signs each FILE with SIGNING_KEY into FILE.sig; without files, it only tests the key. It does
# nothing if SIGNING_KEY is not set. SIGNING_KEY is the file of any key that ssh-keygen accepts, or of the public half
# of a key that an agent or a hardware token holds.
set -euo pipefail

[ -n "${SIGNING_KEY:-}" ] || exit 0
command -v ssh-keygen >/dev/null || {
	echo "sign: ssh-keygen not found; install OpenSSH 8.2 or later, or unset SIGNING_KEY" >&2
	exit 1
}
sign() { ssh-keygen -Y sign -f "$SIGNING_KEY" -n hawser-release "$@"; }
if [ $# -gt 0 ]; then
	sign "$@"
else
	sign </dev/null >/dev/null || { echo "sign: SIGNING_KEY=$SIGNING_KEY cannot sign; nothing was signed" >&2; exit 1; }
fi
