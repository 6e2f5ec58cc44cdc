#!/bin/bash
# archive.sh NAME...: writes a compressed archive of these files in the current directory to stdout. The bytes do not
# depend on place and time. SOURCE_DATE_EPOCH comes from the environment.
set -euo pipefail
tar -cf - --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go=u-w \
	--mtime="@$SOURCE_DATE_EPOCH" "$@" | gzip -9n
