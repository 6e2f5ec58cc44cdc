// Package conformance tests any CNI plugin against the CNI specification, versions 0.4.0, 1.0.0 and 1.1.0. It knows
// nothing about Hawser: it runs executables with environment variables and JSON, and reads the kernel's state.
//
// A subject is a plugin with one working configuration, or a list of plugins. Everything else is derived from the
// configuration: other versions, bad values, capability arguments and chains. A chained plugin gets a prevResult for an
// interface that the suite creates, or the result of the preceding plugins of its list.
//
// Each case runs in a process of its own, in new namespaces with read-only mounts, so that a plugin cannot change the
// machine. Directories in memory show each file that it leaves. A snapshot lists the state of the host or of a
// container. A case about leftovers attaches and detaches one container first, because shared objects such as a bridge
// may stay.
//
// A new case needs a line in the table cases, its citations in citations.tsv, and a plugin that fails it in
// test/conformance/broken_test.go. Helpers such as refuses and succeedsAfter return the function of a case. Other
// functions call methods of world, such as attach and expect, which end the case if it fails.
package conformance

import (
	"cmp"
	_ "embed"
	"regexp"
	"strings"
)

// Level is a key word of the specification, as in RFC 2119.
type Level string

// The words. Only a failed MUST decides the exit status. If the text leaves room, the case is a SHOULD.
const (
	Must   Level = "MUST"
	Should Level = "SHOULD"
	May    Level = "MAY"
)

// Cite is a citation of the specification.
type Cite struct {
	Level   Level
	Section string
	Text    string
}

// Kinds is a set of kinds of subjects.
type Kinds int

// The kinds of subjects. Creating and Delegating are properties of some interface plugins.
const (
	Interface Kinds = 1 << iota
	Chained
	IPAM
	List
	Creating   // the interface does not exist before ADD, unlike lo
	Delegating // the configuration names an IPAM plugin

	Plugins = Interface | Chained | IPAM
)

func (k Kinds) String() string {
	names := map[Kinds]string{Interface: "interface plugin", Chained: "chained plugin", IPAM: "IPAM plugin"}
	return cmp.Or(names[k&Plugins], "list")
}

// Case is a test of one statement of the specification.
type Case struct {
	Name  string // group/name
	Kinds Kinds  // the subjects for which it makes sense
	run   func(w *world)
}

// specs are the versions of the specification for which cases exist, and versions all that a configuration may have.
var (
	specs    = []string{"0.4.0", "1.0.0", "1.1.0"}
	versions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
)

// citations has a line for each citation: the case, the first version, the word ("-": the specification no longer says
// this), the section, and the text.
//
//go:embed citations.tsv
var citations string

// cite returns the citation for a version, or false if that version has no such statement.
func (c Case) cite(spec string) (found Cite, ok bool) {
	for line := range strings.Lines(citations) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if f[0] == c.Name && f[1] <= spec { // the versions are ordered like their texts
			found = Cite{Level(f[2]), f[3], f[4]}
		}
	}
	return found, found.Level != "" && found.Level != "-"
}

// selected returns the cases for a subject and a version whose names match focus and not skip.
func selected(k Kinds, spec string, focus, skip *regexp.Regexp) (list []Case) {
	for _, c := range cases {
		_, applies := c.cite(spec)
		if applies && c.Kinds&k != 0 && focus.MatchString(c.Name) && !skip.MatchString(c.Name) {
			list = append(list, c)
		}
	}
	return list
}

// cases are all cases in the order of the report.
var cases = []Case{
	{"version/supported", Plugins, versionSupported},
	{"version/echo", Plugins, versionEcho},
	{"version/environment", Plugins, versionEnvironment},
	{"version/without-input", Plugins, func(w *world) { w.version(raw("")) }},
	{"version/results", Plugins, eachVersion(sameVersion)},
	{"version/formats", Plugins, eachVersion(CheckResult)},
	{"version/unsupported", Plugins, refusesWith(1, keys(object{"cniVersion": "99.0.0"}))},
	{"error/exit-status", Plugins, refuses(raw("{"), raw(`"text"`), raw(""))},
	{"error/object", Plugins, errorObject},
	{"error/version", Plugins, errorVersion},
	{"error/undecodable", Plugins, refusesWith(6, raw("{"))},
	{"error/reserved-codes", Plugins, errorReserved},
	{"environment/required", Plugins, refuses(unset("CNI_CONTAINERID"), unset("CNI_IFNAME"), unset("CNI_NETNS"))},
	{"environment/names", Plugins, environmentNames},
	{"environment/command", Plugins, func(w *world) { w.fails("FROBNICATE", w.container()) }},
	{"environment/container-id", Plugins, refuses(set("CNI_CONTAINERID", ""), set("CNI_CONTAINERID", "../../escaped"),
		set("CNI_CONTAINERID", "-minus"), set("CNI_CONTAINERID", "with space"))},
	{"environment/interface-name", Creating, refuses(set("CNI_IFNAME", "an-interface-name-that-is-too-long"),
		set("CNI_IFNAME", "sla/sh"), set("CNI_IFNAME", "with space"))},
	{"environment/args", Plugins, accepts(set("CNI_ARGS", "IgnoreUnknown=1;CONFORMANCE=1"))},
	{"environment/unknown-args", Plugins, accepts(set("CNI_ARGS", "FOO=BAR;ABC=123"))},
	{"config/name", Plugins, refuses(keys(object{"name": "../escaped"}), keys(object{"name": "sla/sh"}),
		keys(object{"name": "-minus"}))},
	{"config/unknown-keys", Plugins, accepts(keys(object{"conformanceUnknownKey": object{"a": []any{1, "b", nil}}}))},
	{"config/reserved-keys", Plugins, configReservedKeys},
	{"config/bad-values", Plugins, configBadValues},
	{"add/output", Plugins, output("ADD")},
	{"add/format", Plugins, func(w *world) { w.noError(CheckResult(w.Spec, w.attach().result)) }},
	{"add/interface-name", Creating, addInterfaceName},
	{"add/existing-interface", Creating, func(w *world) { w.fails("ADD", w.occupiedContainer()) }},
	{"add/existing-unharmed", Creating, addExistingUnharmed},
	{"add/interfaces-listed", Interface, addInterfacesListed},
	{"add/sandbox", Interface, addSandbox},
	{"add/interfaces-exist", Interface | Chained, addInterfacesExist},
	{"add/addresses-exist", Interface | Chained, addAddressesExist},
	{"add/addresses-listed", Interface | Chained, addAddressesListed},
	{"add/routes-exist", Interface | Chained, addRoutesExist},
	{"add/prev-result", Chained, addPrevResult},
	{"add/ipam-abbreviated", IPAM, addIPAMAbbreviated},
	{"add/ipam-addresses", IPAM, addIPAMAddresses},
	{"add/two-interfaces", Creating, addTwoInterfaces},
	{"add/capabilities", Plugins, addCapabilities},
	{"del/output", Plugins, output("DEL")},
	{"del/interface", Creating, delInterface},
	{"del/container", Interface | Chained, delContainer},
	{"del/host", Plugins, delRestores("link", "address", "route", "rule")},
	{"del/packet-filter", Plugins, delRestores("nftables", "iptables", "qdisc")},
	{"del/files", Plugins, delRestores("file")},
	{"del/processes", Plugins, delRestores("process")},
	{"del/twice", Plugins, succeedsAfter(detach, "DEL")},
	{"del/never-added", Plugins, func(w *world) { w.succeeds("DEL", w.container()) }},
	{"del/interface-missing", Creating | Chained, succeedsAfter(removeInterface, "DEL")},
	{"del/without-prev-result", Plugins, delWith(keys(object{"prevResult": nil}))},
	{"del/without-netns", Plugins, delWith(unset("CNI_NETNS"))},
	{"del/netns-gone", Plugins, delNetnsGone},
	{"del/after-failed-add", Plugins, delAfterFailedAdd},
	{"del/others", Plugins, delOthers},
	{"check/after-add", Plugins, succeeds("CHECK")},
	{"check/output", Plugins, output("CHECK")},
	{"check/changes-nothing", Plugins, checkChangesNothing},
	{"check/later-route", Interface | Chained, succeedsAfter(addRoute, "CHECK")},
	{"check/later-interface", Interface | Chained, succeedsAfter(addInterface, "CHECK")},
	{"check/interface-missing", Creating, checkFailsAfter(removeInterface)},
	{"check/address-missing", Interface, checkFailsAfter(removeAddresses)},
	{"check/route-missing", Interface, checkFailsAfter(removeRoute)},
	{"check/interface-down", Interface, checkFailsAfter(setDown)},
	{"check/rules-missing", Interface | Chained, checkRulesMissing},
	{"gc/succeeds", Plugins, func(w *world) { w.gc(); w.gc(w.attach()) }},
	{"gc/output", Plugins, output("GC")},
	{"gc/keeps-valid", Plugins, gcKeepsValid},
	{"gc/removes-stale", Plugins, gcRemovesStale},
	{"gc/other-network", Plugins, gcOtherNetwork},
	{"status/ready", Plugins, succeeds("STATUS")},
	{"status/output", Plugins, output("STATUS")},
	{"load/concurrent", Plugins, loadConcurrent},
	{"load/killed-add", Plugins, cleansUpAfterKill("ADD")},
	{"load/killed-del", Plugins, cleansUpAfterKill("DEL")},
	{"delegate/environment", Delegating, delegateEnvironment},
	{"delegate/configuration", Delegating, delegateConfiguration},
	{"delegate/type", Delegating, delegateType},
	{"delegate/stderr", Delegating, delegateStderr},
	{"delegate/add", Delegating, delegates("ADD")},
	{"delegate/del", Delegating, delegates("DEL")},
	{"delegate/check", Delegating, delegates("CHECK")},
	{"delegate/gc", Delegating, delegates("GC")},
	{"delegate/status", Delegating, delegates("STATUS")},
	{"delegate/add-error", Delegating, delegateError("ADD")},
	{"delegate/del-error", Delegating, delegateError("DEL")},
	{"delegate/check-error", Delegating, delegateError("CHECK")},
	{"delegate/gc-error", Delegating, delegateError("GC")},
	{"delegate/status-error", Delegating, delegateError("STATUS")},
	{"delegate/del-after-failed-add", Delegating, delegateDelAfterFailedAdd},
	{"delegate/failed-add-leaves-nothing", Delegating, delegateFailedAdd},
	{"list/add", List, listAdd},
	{"list/check", List, func(w *world) { w.listEach("CHECK", w.listAttach()) }},
	{"list/del", List, listLeavesNothing(listDelTwice)},
	{"list/del-without-prev-result", List, listLeavesNothing(listDelWithoutPrevResult)},
	{"list/del-after-partial-add", List, listLeavesNothing(listDelAfterPartialAdd)},
	{"list/gc", List, listGC},
}
