#!/bin/bash
# archive.sh NAME...: these files of the current directory as a compressed archive, the same wherever and whenever
# it is made. SOURCE_DATE_EPOCH is taken from the environment.
set -euo pipefail
tar -cf - --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go=u-w \
	--mtime="@$SOURCE_DATE_EPOCH" "$@" | gzip -9n
