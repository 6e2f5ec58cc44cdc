package conformance_test

// preamble begins the script of each broken plugin, which precedes the correct plugin in CNI_PATH. The directory of the
// script is /run/cni-conformance/path/0, and that of the correct plugin /run/cni-conformance/path/1. The containers are
// c1, c2 and so on, and a container's namespace has the same name. Scripts use these functions:
//
//	plugin            executes the correct plugin with the configuration in $conf
//	is COMMAND        succeeds if CNI_COMMAND is COMMAND
//	answer            executes the correct plugin, and sets out and rc to its output and exit status
//	finish            prints $out and exits with $rc
//	edit FILTER       executes the correct plugin, applies the jq filter to a result, and exits
//	editError FILTER  does the same to an error object
//	editConf FILTER   applies the jq filter to the configuration
//
// The file or directory $mark is for what a script must remember about a container.
const preamble = `#!/bin/sh
conf=$(cat)
plugin() { printf '%s' "$conf" | "/run/cni-conformance/path/1/${0##*/}"; }
is() { [ "$CNI_COMMAND" = "$1" ]; }
answer() { out=$(plugin); rc=$?; }
finish() { printf '%s' "$out"; exit "$rc"; }
edit() { answer; [ "$rc" != 0 ] || out=$(printf '%s' "$out" | jq "$1"); finish; }
editError() { answer; [ "$rc" = 0 ] || out=$(printf '%s' "$out" | jq "$1"); finish; }
editConf() { conf=$(printf '%s' "$conf" | jq "$1"); }
mark=/run/mark-$CNI_CONTAINERID
`

// fault is a broken plugin: shell code that runs before the correct plugin, or instead of it if the code exits.
type fault struct{ subject, code string }

// broken has for each case a broken plugin, with which the case must fail.
var broken = map[string]fault{
	"version/supported": {"bridge",
		`is VERSION && echo '{"cniVersion":"1.1.0","supportedVersions":["0.4.0"]}' && exit`},
	"version/echo":          {"bridge", `is VERSION && edit '.cniVersion = "0.2.0"'`},
	"version/environment":   {"bridge", `is VERSION && [ -z "$CNI_PATH" ] && exit 1`},
	"version/without-input": {"bridge", `is VERSION && [ -z "$conf" ] && exit 1`},
	"version/results": {"bridge",
		`is ADD && edit 'if .cniVersion == "0.3.1" then .cniVersion = "0.3.0" else . end'`},
	"version/formats":     {"bridge", `is ADD && edit 'if .ip4 then .ips = [] else . end'`},
	"version/unsupported": {"bridge", `editError '.code = 7'`},

	"error/exit-status":    {"bridge", `plugin; exit 0`},
	"error/object":         {"bridge", `answer; [ "$rc" = 0 ] || out="it failed"; finish`},
	"error/version":        {"bridge", `editError 'del(.cniVersion)'`},
	"error/undecodable":    {"bridge", `editError '.code = 7'`},
	"error/reserved-codes": {"bridge", `editError '.code = 42'`},

	"environment/required": {"bridge", `is ADD && [ -z "$CNI_IFNAME" ] && exit 0`},
	"environment/names": {"bridge",
		`editError '.code = 4 | .msg = "a variable is missing" | del(.details)'`},
	"environment/command":        {"bridge", `is FROBNICATE && exit 0`},
	"environment/container-id":   {"bridge", `is ADD && [ -z "$CNI_CONTAINERID" ] && exit 0`},
	"environment/interface-name": {"bridge", `is ADD && [ ${#CNI_IFNAME} -gt 15 ] && CNI_IFNAME=eth0`},
	"environment/args":           {"bridge", `[ -z "$CNI_ARGS" ] || exit 1`},
	"environment/unknown-args":   {"firewall", `[ -z "$CNI_ARGS" ] || exit 1`},

	"config/name":          {"bridge", `is ADD && editConf '.name = "net"'`},
	"config/unknown-keys":  {"bridge", `case $conf in *conformanceUnknownKey*) exit 1 ;; esac`},
	"config/reserved-keys": {"bridge", `case $conf in *cni.dev/*) exit 1 ;; esac`},
	"config/bad-values": {"bridge",
		`is ADD && case $conf in *bad*) echo "panic: no bad values"; exit 2 ;; esac`},

	"add/output":             {"bridge", `is ADD && { plugin; echo done; exit; }`},
	"add/format":             {"bridge", `is ADD && edit '.ips[0].address = "10.1.0.2"'`},
	"add/interface-name":     {"bridge", `is ADD && [ "$CNI_IFNAME" = cnf7 ] && CNI_IFNAME=eth0`},
	"add/existing-interface": {"bridge", `is ADD && ip -n "$CNI_CONTAINERID" link del "$CNI_IFNAME" 2>/dev/null`},
	"add/existing-unharmed": {"bridge",
		`is ADD && ip -n "$CNI_CONTAINERID" link set "$CNI_IFNAME" down 2>/dev/null`},
	"add/interfaces-listed": {"bridge", `is ADD && edit 'del(.interfaces[1])'`},
	"add/sandbox":           {"bridge", `is ADD && edit '.interfaces |= map(del(.sandbox))'`},
	"add/interfaces-exist":  {"bridge", `is ADD && edit '.interfaces[0].mac = "02:00:00:00:00:01"'`},
	"add/addresses-exist":   {"bridge", `is ADD && edit '.ips[0].address = "10.1.255.254/16"'`},
	"add/addresses-listed":  {"bridge", `is ADD && edit 'del(.ips)'`},
	"add/routes-exist":      {"bridge", `is ADD && edit '.routes += [{"dst": "198.18.0.0/15"}]'`},
	"add/prev-result":       {"firewall", `is ADD && edit 'del(.ips[1])'`},
	"add/ipam-abbreviated":  {"host-local", `is ADD && edit '.interfaces = [{"name": "eth0"}]'`},
	"add/ipam-addresses":    {"host-local", `is ADD && edit 'del(.ips)'`},
	"add/two-interfaces": {"bridge",
		`is DEL && [ "$CNI_IFNAME" = cnf7 ] && ip -n "$CNI_CONTAINERID" link del eth0`},
	"add/capabilities": {"bridge", `editConf 'del(.runtimeConfig)'`},

	"del/output":        {"bridge", `is DEL && { plugin; echo '{}'; exit; }`},
	"del/interface":     {"bridge", `is DEL && exit 0`},
	"del/container":     {"bridge", `is DEL && ip -n "$CNI_CONTAINERID" link add left0 type bridge`},
	"del/host":          {"bridge", `is ADD && ip link add "left-$CNI_CONTAINERID" type bridge`},
	"del/packet-filter": {"bridge", `is ADD && nft add table inet "left-$CNI_CONTAINERID"`},
	"del/files":         {"bridge", `is ADD && : >"$mark"`},
	"del/processes":     {"bridge", `is ADD && { sleep 300 </dev/null >/dev/null 2>&1 & }`},
	"del/twice":         {"bridge", `is DEL && { mkdir "$mark" || exit 1; }`},
	"del/never-added":   {"bridge", `is ADD && : >"$mark"; is DEL && { rm "$mark" || exit 1; }`},
	"del/interface-missing": {"bridge",
		`is DEL && { ip -n "$CNI_CONTAINERID" link show "$CNI_IFNAME" >&2 || exit 1; }`},
	"del/without-prev-result": {"bridge", `is DEL && case $conf in *prevResult*) ;; *) exit 1 ;; esac`},
	"del/without-netns":       {"bridge", `is DEL && [ -z "$CNI_NETNS" ] && exit 1`},
	"del/netns-gone":          {"bridge", `is DEL && [ ! -e "$CNI_NETNS" ] && exit 1`},
	"del/after-failed-add":    {"bridge", `is ADD && { answer; [ "$rc" = 0 ] || : >"$mark"; finish; }`},
	"del/others":              {"bridge", `is DEL && ip -n c1 link set eth0 mtu 1300`},

	"check/after-add":         {"bridge", `is CHECK && exit 1`},
	"check/output":            {"bridge", `is CHECK && echo '{}' && exit`},
	"check/changes-nothing":   {"bridge", `is CHECK && ip -n "$CNI_CONTAINERID" addr add 192.0.2.1/32 dev lo`},
	"check/later-route":       {"bridge", `is CHECK && case $conf in *203.0.113.0*) exit 1 ;; esac`},
	"check/later-interface":   {"bridge", `is CHECK && case $conf in *later0*) exit 1 ;; esac`},
	"check/interface-missing": {"bridge", `is CHECK && exit 0`},
	"check/address-missing":   {"bridge", `is CHECK && exit 0`},
	"check/route-missing":     {"bridge", `is CHECK && exit 0`},
	"check/interface-down":    {"bridge", `is CHECK && exit 0`},
	"check/rules-missing":     {"bridge", `is CHECK && exit 0`},

	"gc/succeeds":      {"bridge", `is GC && exit 1`},
	"gc/output":        {"bridge", `is GC && { plugin; echo '{}'; exit; }`},
	"gc/keeps-valid":   {"bridge", `is GC && ip -n c1 link del eth0`},
	"gc/removes-stale": {"bridge", `is GC && exit 0`},
	"gc/other-network": {"bridge", `is GC && editConf '.name = "net"'`},
	"status/ready":     {"bridge", `is STATUS && exit 1`},
	"status/output":    {"bridge", `is STATUS && { plugin; echo '{}'; exit; }`},

	"load/concurrent": {"bridge",
		`is ADD && { mkdir /run/busy || exit 1; answer; sleep .3; rmdir /run/busy; finish; }`},
	"load/killed-add": {"bridge", `is ADD && { : >"$mark"; answer; sleep .3; rm "$mark"; finish; }`},
	"load/killed-del": {"bridge",
		`is DEL && { mkdir "$mark" || exit 1; answer; sleep 1; rmdir "$mark"; finish; }`},

	"delegate/environment":   {"bridge", `unset CNI_CONFORMANCE`},
	"delegate/configuration": {"bridge", `is ADD && editConf 'del(.conformanceUnknownKey)'`},
	"delegate/type":          {"bridge", `is ADD && editConf '.ipam.type |= sub(".*/"; "")'`},
	"delegate/stderr":        {"bridge", `plugin 2>/dev/null; exit`},
	"delegate/add":           {"bridge", `is ADD && editConf 'del(.ipam)'`},
	"delegate/del":           {"bridge", `is DEL && exit 0`},
	"delegate/check":         {"bridge", `is CHECK && exit 0`},
	"delegate/gc":            {"bridge", `is GC && exit 0`},
	"delegate/status":        {"bridge", `is STATUS && exit 0`},
	"delegate/add-error":     {"bridge", `is ADD && { plugin; exit 0; }`},
	"delegate/del-error":     {"bridge", `is DEL && { plugin >&2; exit 0; }`},
	"delegate/check-error":   {"bridge", `is CHECK && { plugin >&2; exit 0; }`},
	"delegate/gc-error":      {"bridge", `is GC && { plugin >&2; exit 0; }`},
	"delegate/status-error":  {"bridge", `is STATUS && { plugin >&2; exit 0; }`},
	"delegate/del-after-failed-add": {"bridge",
		`observer=/run/cni-conformance/delegate/host-local
		is ADD && [ -e $observer ] && { printf '%s' "$conf" | $observer; exit 1; }`},
	"delegate/failed-add-leaves-nothing": {"bridge",
		`is ADD && { answer; [ "$rc" = 0 ] || ip link add left type bridge; finish; }`},

	"list/add":                     {"list", `is ADD && edit 'del(.interfaces[0])'`},
	"list/check":                   {"list", `is CHECK && exit 1`},
	"list/del":                     {"list", `is ADD && : >"$mark"`},
	"list/del-without-prev-result": {"list", `is DEL && case $conf in *prevResult*) ;; *) exit 1 ;; esac`},
	"list/del-after-partial-add":   {"list", `is ADD && : >"$mark"; is DEL && { rm "$mark" || exit 1; }`},
	"list/gc":                      {"list", `is GC && exit 1`},
}

// null answers each command with as little as the specification allows: ADD creates an interface, which its result does
// not list, and everything else succeeds without doing anything.
const null = `case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}' ;;
ADD) if [ "${0##*/}" = bridge ]; then ip -n "$CNI_CONTAINERID" link add "$CNI_IFNAME" type bridge; fi
	echo '{"cniVersion": "1.1.0"}' ;;
esac
exit 0`

// mute is null, except that VERSION also answers with nothing.
const mute = `is VERSION && echo '{}' && exit
` + null

// failing works in the probe, which calls VERSION. Elsewhere each command fails, with an error that names everything.
const failing = `is VERSION && : >/run/probe
[ -e /run/probe ] || {
	echo '{"cniVersion": "1.1.0", "code": 7, "msg": "CNI_COMMAND, CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS"}'
	exit 1
}`
