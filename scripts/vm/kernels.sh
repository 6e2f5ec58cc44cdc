#!/bin/bash
# kernels.sh TEST ROW...: runs TEST, the test program of test/kernels, in the virtual machine once for each ROW. A row
# is a comma-separated list of restrictions:
#
#   stock            none
#   MODULE           the kernel module cannot be loaded; "xt_" means all modules with this prefix
#   no-iptables      no iptables programs
#   iptables-legacy  only the legacy iptables programs
#   read-only        /usr and /opt are read-only
#   NAME=VALUE       the machine was booted with this kernel parameter
#
# Prints a line "kernel", version; and for each feature a line "cell", row, feature, result, separated by tabs.
set -euo pipefail
test=$1
shift
export HAWSER_CELLS=/tmp/cells HAWSER_ROW HAWSER_MISSING
failed=0
modprobe_conf=/etc/modprobe.d/hawser.conf
mkdir -p ${modprobe_conf%/*} /run/programs
cp -a /usr/sbin/ip*tables* /usr/sbin/xtables* /run/programs/

# unload removes unused network modules, as after a boot.
unload() {
	local before
	while before=$(wc -l </proc/modules); do
		awk '$3 == 0 && $1 ~ /^(nf|ip|x_|xt_|eb|br|veth|sch_|act_|cls_|ifb|macv|8021q|dummy|vrf|netkit|stp|llc|libcrc32c)/ { print $1 }' \
			/proc/modules | xargs -r -n 1 rmmod 2>/dev/null || true
		[ "$(wc -l </proc/modules)" -lt "$before" ] || return 0
	done
}

# restrict RESTRICTION applies one restriction of a row.
restrict() {
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
	*_) restrict "$1*" ;;
	*)
		HAWSER_MISSING+=" $1"
		echo "install $1 /bin/false" >>$modprobe_conf
		! grep "^${1/\*/[^ ]*} " /proc/modules || echo "== $HAWSER_ROW: a module is still loaded"
		;;
	esac
}

printf 'kernel\t%s\n' "$(uname -r)"
# affected_features ROW prints a regular expression for the features that the row can affect.
affected_features() {
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
	rm -f "$HAWSER_CELLS" $modprobe_conf
	! mountpoint -q /usr || umount -l /usr /opt # lazily, because processes may still use them
	cp -a /run/programs/. /usr/sbin/
	HAWSER_MISSING=
	[[ $HAWSER_ROW != ipv6.disable=1 ]] || HAWSER_MISSING=IPv6
	unload
	for restriction in ${HAWSER_ROW//,/ }; do restrict "$restriction"; done
	out=$(cd test/kernels && "$test" -ginkgo.no-color -ginkgo.succinct -ginkgo.label-filter kernels \
		-ginkgo.focus "$(affected_features "$HAWSER_ROW")" 2>&1) ||
		{ failed=1; printf '== %s failed\n%s\n' "$HAWSER_ROW" "$out"; }
	sed 's/^/cell\t/' "$HAWSER_CELLS"
done
exit $failed
