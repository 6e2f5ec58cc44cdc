#!/bin/bash
# retry.sh COMMAND [ARG...]: up to three times, until it succeeds: a mirror may fail once.
set -euo pipefail
for try in 1 2 3; do
	"$@" && exit 0
	rc=$?
	[ $try = 3 ] || { echo "retry: $1 failed with $rc, once more" >&2; sleep $((5 * try)); }
done
exit "$rc"
