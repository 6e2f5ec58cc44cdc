#!/bin/bash
# kernels.sh TEST ROW...: in the virtual machine, the specs TEST of test/kernels once for each ROW: "stock", or what the
# machine lacks, separated by commas: modules, which cannot be loaded ("xt_": all that begin so), "no-iptables",
# "iptables-legacy" (no iptables but that), "read-only" (/usr, /opt), or the parameter with which the kernel was
# started. Each cell is a line "cell", the row, the feature, and what the specs wrote, with tabs between.
set -euo pipefail
test=$1
shift
export HAWSER_CELLS=/tmp/cells HAWSER_ROW HAWSER_MISSING
failed=0
barred=/etc/modprobe.d/hawser.conf
mkdir -p ${barred%/*} /run/programs
cp -a /usr/sbin/ip*tables* /usr/sbin/xtables* /run/programs/

# unload removes each module that nothing uses, as if the machine had just started.
unload() {
	local before
	while before=$(wc -l </proc/modules); do
		awk '$3 == 0 && $1 ~ /^(nf|ip|x_|xt_|eb|br|veth|sch_|act_|cls_|ifb|macv|8021q|dummy|vrf|netkit|stp|llc|libcrc32c)/ { print $1 }' \
			/proc/modules | xargs -r -n 1 rmmod 2>/dev/null || true
		[ "$(wc -l </proc/modules)" -lt "$before" ] || return 0
	done
}

# without makes the machine lack one thing.
without() {
	local program
	case $1 in
	stock | *=*) ;;
	no-iptables) rm /usr/sbin/ip*tables* /usr/sbin/xtables* && HAWSER_MISSING+=" iptables-restore ip6tables-restore" ;;
	iptables-legacy)
		rm /usr/sbin/ip*tables-nft* /usr/sbin/xtables-nft-multi
		for program in {ip,ip6}tables{,-restore,-save}; do
			ln -sf "${program/tables/tables-legacy}" "/usr/sbin/$program"
		done
		;;
	read-only) mount -o bind,ro /usr /usr && mount -o bind,ro /opt /opt ;;
	*_) without "$1*" ;;
	*)
		HAWSER_MISSING+=" $1"
		echo "install $1 /bin/false" >>$barred
		! grep "^${1/\*/[^ ]*} " /proc/modules || echo "== $HAWSER_ROW: is loaded"
		;;
	esac
}

printf 'kernel\t%s\n' "$(uname -r)"
# touched is a pattern for the features that what the machine lacks can touch.
touched() {
	case $1 in
	nf* | xt_* | ip_tables* | *iptables*) echo 'missing (usual|masquerade|host ports|firewall|macspoofchk)' ;;
	br_netfilter) echo 'missing (usual|host ports|firewall|bridge$|portIsolation)' ;;
	sch_* | cls_* | act_* | ifb) echo 'missing (usual|bandwidth)' ;;
	veth) echo 'missing (usual|bridge$|ptp|.*vlan|tap|dummy|host-device)' ;;
	read-only) echo 'missing (usual|masquerade|host ports|firewall|bandwidth$|tuning)' ;;
	*) echo . ;;
	esac
}

for HAWSER_ROW; do
	rm -f "$HAWSER_CELLS" $barred
	! mountpoint -q /usr || umount -l /usr /opt # what still runs may be of there
	cp -a /run/programs/. /usr/sbin/
	HAWSER_MISSING=
	[[ $HAWSER_ROW != ipv6.disable=1 ]] || HAWSER_MISSING=IPv6
	unload
	for what in ${HAWSER_ROW//,/ }; do without "$what"; done
	out=$(cd test/kernels && "$test" -ginkgo.no-color -ginkgo.succinct -ginkgo.label-filter kernels \
		-ginkgo.focus "$(touched "$HAWSER_ROW")" 2>&1) ||
		{ failed=1; printf '== %s failed\n%s\n' "$HAWSER_ROW" "$out"; }
	sed 's/^/cell\t/' "$HAWSER_CELLS"
done
exit $failed
