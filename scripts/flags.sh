#!/bin/bash
# flags.sh: how the Go packages of the programs are compiled, one flag a line. Whoever compiles the tests with the same
# flags tests what is shipped, and does not compile it, and the standard library, twice. CGO_ENABLED=0 goes with them.
set -euo pipefail

echo -trimpath
# What a start does not run is smaller with nothing inlined: by 4 % of the file and 6 % of an archive.
for packages in github.com/{vishvananda,spf13,godbus,insomniacslk,coreos,mdlayher,pierrec,u-root} text log crypto path \
	vendor compress archive \
	golang.org/x/{mod,net,sync,sys} github.com/hawser-cni/plugins/{cmd,pkg,plugins}; do
	echo "-gcflags=$packages/...=-l"
done
# Without inlining in reflect the one program is 33 kB smaller. In 400 pairs of calls of bridge, an ADD took 1 % more
# processor time and VERSION the same. bufio, bytes, os, sync and the like make the packages 14 kB smaller. In 900 pairs
# with and without them, neither VERSION, ADD nor DEL of bridge took more. Of the other packages only runtime, which every
# call uses, saves more than 4 kB.
for package in bufio bytes context encoding/binary encoding/csv encoding/json flag fmt internal/poll \
	internal/syscall/unix io/fs maps net net/url os os/exec os/signal os/user reflect regexp/syntax slices sort strconv \
	strings sync syscall time; do
	echo "-gcflags=$package=-l"
done
