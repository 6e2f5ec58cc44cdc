#!/bin/bash
# sign.sh [FILE...]: signs the files with SIGNING_KEY, each into FILE.sig; without files it tries the key. Where
# SIGNING_KEY is not set it does nothing. The key is any that ssh-keygen takes: a file, or the public half of one
# that an agent or a hardware key has.
set -euo pipefail

[ -n "${SIGNING_KEY:-}" ] || exit 0
command -v ssh-keygen >/dev/null || { echo "sign: SIGNING_KEY is set, and there is no ssh-keygen (OpenSSH 8.2) to sign with" >&2; exit 1; }
sign() { ssh-keygen -Y sign -f "$SIGNING_KEY" -n hawser-release "$@"; }
if [ $# -gt 0 ]; then
	sign "$@"
else
	sign </dev/null >/dev/null || { echo "sign: SIGNING_KEY=$SIGNING_KEY cannot sign; nothing was made" >&2; exit 1; }
fi
