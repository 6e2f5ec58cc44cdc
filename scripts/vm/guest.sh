#!/bin/bash
# guest.sh: runs the command in the virtual machine, leaves its status, turns off.
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# now prints the time of the machine outside, which is the time stamp of a new file, in milliseconds.
now() { touch /.vm/now; stat -c %.3Y /.vm/now | tr -d .; }
clock=${EPOCHREALTIME//[!0-9]/} began=$(now)
sleep 1
# A busy machine disturbs the measurement of the TSC's frequency. The clock may then run many times too fast.
passed=$(($(now) - began))
((${EPOCHREALTIME//[!0-9]/} - clock < 3000 * passed)) || { echo o >/proc/sysrq-trigger; exec tail -f /dev/null; }
: >/.vm/started
ip link set lo up
# Other modules load by themselves when they are asked for.
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
