// Package conformance tests any CNI plugin against the CNI specification, versions 0.4.0, 1.0.0 and 1.1.0. It does not
// depend on Hawser: it runs executables with environment variables and JSON, and reads the kernel's state.
//
// A subject is a plugin with one working configuration, or a list of plugins. The suite derives all other
// configurations from this one: other versions, bad values, capability arguments and chains. A chained plugin gets a
// prevResult for an interface that the suite creates, or the result of the preceding plugins of its list.
//
// A job is one case with one subject. It runs in a child process with new namespaces, which are the host that the
// plugin sees. The machine's files are read-only there, and directories in memory show each file that the plugin
// leaves. The first job of a subject is the probe. It finds out the kind, the versions, and whether ADD works.
//
// A case is a function of a world. Methods of world call the plugin and end the case if an expectation fails: attach
// creates a container and calls ADD, fails expects an error, unchanged and settles compare snapshots of the host or a
// container. A change alters one call, as set and keys do; an event alters the container between two calls. A case
// about leftovers first attaches and detaches one container, because a plugin may keep shared objects such as a bridge.
//
// A new case needs:
//   - a row in the table cases; its function is in a file cases_*.go, or a helper such as refuses returns it
//   - rows in citations.tsv, which decide for which versions it runs and whether it is a MUST, a SHOULD or a MAY
//   - a plugin that fails it, in test/conformance/broken_test.go, which the environment variable CASE selects
//
// A case must not pass without a check: it calls need if the plugin or the machine gives it nothing to check.
package conformance

import (
	"cmp"
	"embed"
	"regexp"
	"strings"
)

// Level is a requirement level, as in RFC 2119.
type Level string

// Only a failed MUST makes the exit status 1. A case is a SHOULD if its text can also be read in another way.
const Must, Should, May Level = "MUST", "SHOULD", "MAY"

// Cite is a citation of the specification.
type Cite struct {
	Level         Level
	Section, Text string
}

// Kinds is a set of kinds of subjects.
type Kinds int

// A subject is of one of the first four kinds. An interface plugin can also be Creating and Delegating.
const (
	Interface Kinds = 1 << iota
	Chained
	IPAM
	List
	Creating   // the interface does not exist before ADD, unlike lo
	Delegating // the configuration names an IPAM plugin
	Plugins    = Interface | Chained | IPAM
)

func (k Kinds) String() string {
	names := map[Kinds]string{Interface: "interface plugin", Chained: "chained plugin", IPAM: "IPAM plugin"}
	return cmp.Or(names[k&Plugins], "list")
}

// Case is a test of one statement of the specification.
type Case struct {
	Name  string // group/name
	Kinds Kinds  // the case runs for subjects of any of these kinds
	run   func(w *world)
}

var (
	specs       = []string{"0.4.0", "1.0.0", "1.1.0"} // versions that the cases cite
	cniVersions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
)

// data has the templates and citations.tsv, which has a line for each citation, old versions first. The fields of a
// line are the case, the first version with this text, the level ("-" if that version dropped the statement), the
// section, and the text word for word, with " ... " for omissions.
//
//go:embed citations.tsv *.tmpl
var data embed.FS

// cite returns the citation for a version, from the case's last line that is not newer. ok is false if it has none.
func (c Case) cite(spec string) (found Cite, ok bool) {
	citations, _ := data.ReadFile("citations.tsv")
	for line := range strings.Lines(string(citations)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if f[0] == c.Name && f[1] <= spec { // these versions compare as strings
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

// cases lists all cases in the order of the report.
var cases = []Case{
	{"version/supported", Plugins, versionSupported},
	{"version/echo", Plugins, versionEcho},
	{"version/environment", Plugins, func(w *world) { w.version(unset("CNI_PATH")) }}, // CNI_COMMAND stays
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
	{"environment/command", Plugins, func(w *world) { w.fails("FROBNICATE", w.attach()) }},
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
	{"add/ipam-addresses", IPAM, func(w *world) { w.expect(list(w.attach().result, "ips") != nil, "no ips") }},
	{"add/two-interfaces", Creating, addTwoInterfaces},
	{"add/capabilities", Plugins, addCapabilities},
	{"del/output", Plugins, output("DEL")},
	{"del/interface", Creating, delInterface},
	{"del/container", Interface | Chained, delContainer},
	{"del/host", Plugins, delRestores("link", "address", "route", "rule")},
	{"del/packet-filter", Plugins, delPacketFilter},
	{"del/files", Plugins, delRestores("file")},
	{"del/processes", Plugins, delRestores("process")},
	{"del/twice", Plugins, eventCase(delOnce, (*world).succeeds, "DEL")},
	{"del/never-added", Plugins, func(w *world) { w.succeeds("DEL", w.newContainer()) }},
	{"del/interface-missing", Creating | Chained, eventCase(removeInterface, (*world).succeeds, "DEL")},
	{"del/without-prev-result", Plugins, delWith(keys(object{"prevResult": nil}))},
	{"del/without-netns", Plugins, delWith(unset("CNI_NETNS"))},
	{"del/netns-gone", Plugins, delNetnsGone},
	{"del/after-failed-add", Plugins, delAfterFailedAdd},
	{"del/others", Plugins, delOthers},
	{"check/after-add", Plugins, func(w *world) { w.succeeds("CHECK", w.attach()) }},
	{"check/output", Plugins, output("CHECK")},
	{"check/changes-nothing", Plugins, checkChangesNothing},
	{"check/later-route", Interface | Chained, eventCase(addRoute, (*world).succeeds, "CHECK")},
	{"check/later-interface", Interface | Chained, eventCase(addInterface, (*world).succeeds, "CHECK")},
	{"check/interface-missing", Creating, eventCase(removeInterface, (*world).fails, "CHECK")},
	{"check/address-missing", Interface, eventCase(removeAddresses, (*world).fails, "CHECK")},
	{"check/route-missing", Interface, eventCase(removeRoute, (*world).fails, "CHECK")},
	{"check/interface-down", Interface, eventCase(setDown, (*world).fails, "CHECK")},
	{"check/rules-missing", Interface | Chained, checkRulesMissing},
	{"gc/succeeds", Plugins, func(w *world) { w.gc(); w.gc(w.attach()) }},
	{"gc/output", Plugins, output("GC")},
	{"gc/keeps-valid", Plugins, gcKeepsValid},
	{"gc/removes-stale", Plugins, gcRemovesStale},
	{"gc/other-network", Plugins, gcOtherNetwork},
	{"status/ready", Plugins, func(w *world) { w.succeeds("STATUS", nil) }},
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
	{"list/del", List, listLeavesNothing(func(w *world) { w.listEach("DEL", w.listEach("DEL", w.listAttach())) })},
	{"list/del-without-prev-result", List, listLeavesNothing(listDelWithoutPrevResult)},
	{"list/del-after-partial-add", List, listLeavesNothing(func(w *world) { w.listEach("DEL", w.attach()) })},
	{"list/gc", List, listGC},
}
