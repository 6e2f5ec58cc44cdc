#!/bin/bash
# retry.sh COMMAND [ARG...]: runs COMMAND until it succeeds, at most three times, because a mirror may fail temporarily.
set -euo pipefail
for try in 1 2 3; do
	"$@" && exit 0
	rc=$?
	[ $try = 3 ] || { echo "retry: $1 failed with status $rc, trying again" >&2; sleep $((5 * try)); }
done
exit "$rc"
