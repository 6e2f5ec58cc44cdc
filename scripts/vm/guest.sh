#!/bin/bash
# guest.sh: runs /.vm/command.sh in the virtual machine, writes its exit status to /.vm/rc, and powers off.
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# host_time prints the host's time in milliseconds, which is the time stamp of a new file on the host.
host_time() { touch /.vm/now; stat -c %.3Y /.vm/now | tr -d .; }
clock=${EPOCHREALTIME//[!0-9]/} began=$(host_time)
sleep 1
# On a busy machine the kernel may calibrate the TSC wrongly, so that the clock runs many times too fast. Without
# /.vm/started, run.sh boots again.
passed=$(($(host_time) - began))
((${EPOCHREALTIME//[!0-9]/} - clock < 3000 * passed)) || { echo o >/proc/sysrq-trigger; exec tail -f /dev/null; }
: >/.vm/started
ip link set lo up
# The kernel loads other modules on demand.
modprobe -a br_netfilter tun sctp
for port in /sys/class/virtio-ports/*; do
	[ "$(<"$port/name")" = out ] && out=/dev/${port##*/}
done
rc=0
/bin/bash /.vm/command.sh </dev/null >"$out" 2>&1 || rc=$?
echo $rc >/.vm/rc
sync -f /.vm/rc
echo o >/proc/sysrq-trigger
exec tail -f /dev/null
