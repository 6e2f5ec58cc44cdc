#!/bin/bash
# flags.sh: prints the flags with which the programs are compiled, one per line. Tests that are compiled with the same
# flags test the shipped code, and reuse its compiled packages. Set CGO_ENABLED=0 as well.
set -euo pipefail

echo -trimpath
# Code that does not run when a program starts needs no inlining. Without inlining in these packages, hawser is 4 %
# smaller, and an archive 6 %.
for packages in github.com/{vishvananda,spf13,godbus,insomniacslk,coreos,mdlayher,pierrec,u-root} text log crypto path \
	vendor compress archive \
	golang.org/x/{mod,net,sync,sys} github.com/hawser-cni/plugins/{cmd,pkg,plugins}; do
	echo "-gcflags=$packages/...=-l"
done
# Without inlining in reflect, hawser is 33 kB smaller. In 400 pairs of calls of bridge, ADD took 1 % more CPU time and
# VERSION the same. bufio, bytes, os, sync and similar packages make the Debian and RPM packages 14 kB smaller. In 900
# pairs of calls of bridge, VERSION, ADD and DEL took no more CPU time. encoding/base64, encoding/hex, errors, io,
# math/big, math/rand, net/netip and unicode save 3 kB more. Of the other packages, only runtime would save more than
# 4 kB, but every call uses it.
for package in bufio bytes context encoding/base64 encoding/binary encoding/csv encoding/hex encoding/json errors \
	flag fmt internal/poll internal/syscall/unix io io/fs maps math/big math/rand net net/netip net/url \
	os os/exec os/signal os/user reflect regexp/syntax slices sort strconv strings sync syscall time \
	unicode unicode/utf16; do
	echo "-gcflags=$package=-l"
done
