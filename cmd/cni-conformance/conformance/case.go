// Package conformance tests any CNI plugin against the CNI specification, versions 0.4.0, 1.0.0 and 1.1.0. It knows
// nothing about Hawser: it runs executables with environment variables and JSON, and reads the kernel's state.
//
// A [Case] is a value: a name, the kinds of plugins for which it makes sense, a function, and citations. A citation is
// a section, the specification's word (MUST, SHOULD or MAY) and its text. Citations are in citations.tsv, because the
// word may differ between versions of the specification. Only MUST decides the exit status. Where the text leaves room,
// the case is a SHOULD.
//
// A subject is a plugin with one working configuration, written by the plugin's author. Everything else is derived
// from the configuration: other versions, bad values, capability arguments, and chains. An interface plugin creates an
// interface. A chained plugin gets a prevResult for an interface that the suite creates itself, or the result of the
// preceding plugins of its list. An IPAM plugin is called without an interface. A list is a subject, too.
//
// Each case runs in a process of its own, which is PID 1 of new network, mount, PID, IPC and UTS namespaces, and of a
// user namespace unless the caller is root. All mounts are read-only there, except directories in memory: /run,
// /var/lib, /tmp and the directories of --writable. A plugin cannot change the machine, and each file that it leaves is
// visible.
// If the kernel refuses the namespaces, the program says so and does not run any case.
//
// A snapshot of a case's host lists links, addresses, routes, rules, qdiscs, nftables, iptables, files and processes.
// A case about cleaning up attaches and detaches one container first, because shared objects such as a bridge may
// stay. It then compares the snapshots before ADD and after DEL of another container.
//
// The delegate of an interface plugin is observed by a script with the IPAM plugin's name in the first directory of
// CNI_PATH. It records its environment and configuration, and then runs the real IPAM plugin or fails, as the case
// demands.
//
// A case reports a failure with the calls that it made. The reports are text, TAP 14 and JUnit XML. A failed SHOULD is
// a TODO in TAP and skipped in JUnit, so that it is visible and does not break a build.
package conformance

import (
	_ "embed"
	"regexp"
	"strings"
)

// Word is a key word of the specification, as in RFC 2119.
type Word string

// The words, strongest first.
const (
	Must   Word = "MUST"
	Should Word = "SHOULD"
	May    Word = "MAY"
)

// Cite is a citation of the specification.
type Cite struct {
	Word    Word // empty: the specification no longer says this
	Section string
	Text    string
}

// Kinds is a set of kinds of subjects.
type Kinds int

// The kinds of subjects.
const (
	Interface Kinds = 1 << iota
	Chained
	IPAM
	List
	Delegating // an interface plugin whose configuration names an IPAM plugin

	Plugins = Interface | Chained | IPAM
)

// kindNames are the values of --kind.
var kindNames = map[Kinds]string{Interface: "interface", Chained: "chained", IPAM: "ipam", List: "list"}

func (k Kinds) String() string { return kindNames[k&^Delegating] }

// Case is a test of one statement of the specification.
type Case struct {
	Name string // group/name
	For  Kinds
	run  func(w *world)
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
			found = Cite{Word(f[2]), f[3], f[4]}
		}
	}
	return found, found.Word != "" && found.Word != "-"
}

// selected returns the cases for a subject and a version whose names match.
func selected(k Kinds, spec string, focus, skip *regexp.Regexp) (list []Case) {
	for _, c := range cases {
		_, applies := c.cite(spec)
		if applies && c.For&k != 0 && focus.MatchString(c.Name) && (skip == nil || !skip.MatchString(c.Name)) {
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
	{"version/without-input", Plugins, versionWithoutInput},
	{"version/results", Plugins, func(w *world) { w.eachVersion(sameVersion) }},
	{"version/formats", Plugins, func(w *world) { w.eachVersion(FormatError) }},
	{"version/unsupported", Plugins, versionUnsupported},
	{"error/exit-status", Plugins, errorStatus},
	{"error/object", Plugins, errorObjectOf},
	{"error/version", Plugins, errorVersion},
	{"error/undecodable", Plugins, errorUndecodable},
	{"error/reserved-codes", Plugins, errorReserved},
	{"environment/required", Plugins, environmentRequired},
	{"environment/names", Plugins, environmentNames},
	{"environment/command", Plugins, environmentCommand},
	{"environment/container-id", Plugins, environmentContainerID},
	{"environment/interface-name", Interface, environmentInterfaceName},
	{"environment/args", Plugins, func(w *world) { w.withArgs("IgnoreUnknown=1;CONFORMANCE=1") }},
	{"environment/unknown-args", Plugins, func(w *world) { w.withArgs("FOO=BAR;ABC=123") }},
	{"config/name", Plugins, configName},
	{"config/unknown-keys", Plugins, configUnknownKeys},
	{"config/reserved-keys", Plugins, configReservedKeys},
	{"config/bad-values", Plugins, configBadValues},
	{"add/output", Plugins, addOutput},
	{"add/format", Plugins, addFormat},
	{"add/interface-name", Interface, addInterfaceName},
	{"add/existing-interface", Interface, addExistingInterface},
	{"add/existing-unharmed", Interface, addExistingUnharmed},
	{"add/interfaces-listed", Interface, addInterfacesListed},
	{"add/sandbox", Interface, addSandbox},
	{"add/interfaces-exist", Interface | Chained, addInterfacesExist},
	{"add/addresses-exist", Interface | Chained, addAddressesExist},
	{"add/addresses-listed", Interface | Chained, addAddressesListed},
	{"add/routes-exist", Interface | Chained, addRoutesExist},
	{"add/prev-result", Chained, addPrevResult},
	{"add/ipam-abbreviated", IPAM, addIPAMAbbreviated},
	{"add/ipam-addresses", IPAM, addIPAMAddresses},
	{"add/two-interfaces", Interface, addTwoInterfaces},
	{"add/capabilities", Plugins, addCapabilities},
	{"del/output", Plugins, func(w *world) { w.silent("DEL", w.attach("one")) }},
	{"del/interface", Interface, delInterface},
	{"del/container", Interface | Chained, delContainer},
	{"del/host", Plugins, func(w *world) { w.delLeaves("link", "address", "route", "rule") }},
	{"del/packet-filter", Plugins, func(w *world) { w.delLeaves("nftables", "iptables", "qdisc") }},
	{"del/files", Plugins, func(w *world) { w.delLeaves("file") }},
	{"del/processes", Plugins, func(w *world) { w.delLeaves("process") }},
	{"del/twice", Plugins, delTwice},
	{"del/never-added", Plugins, func(w *world) { w.succeeds("DEL", w.container("one")) }},
	{"del/interface-missing", Interface | Chained, delInterfaceMissing},
	{"del/without-prev-result", Plugins, func(w *world) { w.delWith(keys(object{"prevResult": nil})) }},
	{"del/without-netns", Plugins, func(w *world) { w.delWith(set("CNI_NETNS", "-")) }},
	{"del/netns-gone", Plugins, delNetnsGone},
	{"del/after-failed-add", Plugins, delAfterFailedAdd},
	{"del/others", Plugins, delOthers},
	{"check/after-add", Plugins, func(w *world) { w.succeeds("CHECK", w.attach("one")) }},
	{"check/output", Plugins, func(w *world) { w.silent("CHECK", w.attach("one")) }},
	{"check/changes-nothing", Plugins, checkChangesNothing},
	{"check/later-route", Interface | Chained, checkLaterRoute},
	{"check/later-interface", Interface | Chained, checkLaterInterface},
	{"check/interface-missing", Interface, checkInterfaceMissing},
	{"check/address-missing", Interface, checkAddressMissing},
	{"check/route-missing", Interface, checkRouteMissing},
	{"check/interface-down", Interface, checkInterfaceDown},
	{"check/rules-missing", Interface | Chained, checkRulesMissing},
	{"gc/succeeds", Plugins, func(w *world) { w.gc(); w.gc(w.attach("one")) }},
	{"gc/output", Plugins, func(w *world) { w.silent("GC", nil, validAttachments(w.attach("one"))) }},
	{"gc/keeps-valid", Plugins, gcKeepsValid},
	{"gc/removes-stale", Plugins, gcRemovesStale},
	{"gc/other-network", Plugins, gcOtherNetwork},
	{"status/ready", Plugins, func(w *world) { w.succeeds("STATUS", nil) }},
	{"status/output", Plugins, func(w *world) { w.silent("STATUS", nil) }},
	{"load/concurrent", Plugins, loadConcurrent},
	{"load/killed-add", Plugins, loadKilledAdd},
	{"load/killed-del", Plugins, loadKilledDel},
	{"delegate/environment", Delegating, delegateEnvironment},
	{"delegate/configuration", Delegating, delegateConfiguration},
	{"delegate/type", Delegating, delegateType},
	{"delegate/stderr", Delegating, delegateStderr},
	{"delegate/add", Delegating, func(w *world) { w.delegates("ADD") }},
	{"delegate/del", Delegating, func(w *world) { w.delegates("DEL") }},
	{"delegate/check", Delegating, func(w *world) { w.delegates("CHECK") }},
	{"delegate/gc", Delegating, func(w *world) { w.delegates("GC") }},
	{"delegate/status", Delegating, func(w *world) { w.delegates("STATUS") }},
	{"delegate/add-error", Delegating, func(w *world) { w.delegateError("ADD") }},
	{"delegate/del-error", Delegating, func(w *world) { w.delegateError("DEL") }},
	{"delegate/check-error", Delegating, func(w *world) { w.delegateError("CHECK") }},
	{"delegate/gc-error", Delegating, func(w *world) { w.delegateError("GC") }},
	{"delegate/status-error", Delegating, func(w *world) { w.delegateError("STATUS") }},
	{"delegate/del-after-failed-add", Delegating, delegateDelAfterFailedAdd},
	{"delegate/failed-add-leaves-nothing", Delegating, delegateFailedAdd},
	{"list/add", List, listAdd},
	{"list/check", List, func(w *world) { w.listEach("CHECK", w.listAttach("one")) }},
	{"list/del", List, listDel},
	{"list/del-without-prev-result", List, listDelWithoutPrevResult},
	{"list/del-after-partial-add", List, listPartial},
	{"list/gc", List, listGC},
}
