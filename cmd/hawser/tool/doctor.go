package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findingKind is a kind of finding. Its ID has a section in docs/doctor.md.
type findingKind struct {
	ID       string `json:"id"`
	Severity string `json:"severity"`
	Advice   string `json:"advice"`
}

type finding struct {
	findingKind
	What string `json:"what"`
}

const (
	broken   = "error"   // containers have no network, or the next container will not
	doubtful = "warning" // it works now, but not permanently or not for all containers
)

const ownersAdvice = "hawser ls %s lists the owners; release stale leases (hawser gc --yes), or add a range"

// kinds are in the order in which doctor prints findings: the most severe and most frequent ones first. advise replaces
// the formatting verbs of an advice. A kind without advice gets it from the checker of lists.
var kinds = []findingKind{
	{"missing-plugin", broken, "%s, or remove it from the list; without it DEL fails"},
	{"bad-file", broken, "correct the file; hawser check names the key"},
	{"no-list", broken, "write a list, or find out why the network's installer wrote none; kubelet is not ready"},
	{"no-subnet", broken, "find out why flanneld is not running or has no subnet (its log; podCIDR of the node)"},
	{"unknown-version", broken, "install newer plugins: no version is supported by all plugins of the list"},
	{"refused-list", broken, "correct the value; hawser check %s lists all refused values"},
	{"list-conflict", broken, ""},
	{"ipv6-disabled", broken, "sysctl -w %s, also in /etc/sysctl.d, or remove the IPv6 range"},
	{"not-ready", broken, "remove the cause that the message names: each ADD fails"},
	{"full-range", broken, ownersAdvice},
	{"overlapping-ranges", broken, ""},
	{"overlapping-route", broken, "use another subnet for the network: packets to its containers go elsewhere"},
	{"lost-lease", broken, "replace these containers: another container may get the same address"},
	{"forwarding-off", broken, "sysctl -w %s=1, and remove what sets it to 0, such as a file in /etc/sysctl.d"},
	{"firewalld-flushed", broken, "systemctl restart firewalld; hawser reapply (hawser watch does that automatically)"},
	{"drop-policy", broken, "remove the rule, or insert a rule before it that accepts containers"},
	{"missing-module", broken, "install the kernel's package of extra modules, or remove the plugin from the list"},
	{"missing-guard", broken, "run hawser reapply, and find out what flushes rules: containers reach 127.0.0.1"},
	{"drift", broken, "run hawser reapply, and find out what removes it (hawser watch restores it automatically)"},
	{"changed-mac", doubtful, "ip link set dev %s address %s, and set MACAddressPolicy=none for udev"},
	{"orphan-lease", doubtful, "hawser ls --orphans gives the reason; hawser gc --yes removes it"},
	{"leftover", doubtful, "hawser ls --orphans gives the reason; hawser gc --yes removes it"},
	{"nearly-full-range", doubtful, ownersAdvice},
	{"name-twice", doubtful, ""},
	{"covered-route", doubtful, "use another subnet for the network if hosts behind that route are needed"},
	{"vlan-uplink", doubtful, "bridge vlan add dev %s vid %d"},
	{"other-default-route", doubtful, "remove the default route from the list of %q, or raise its priority (metric)"},
	{"other-directory", doubtful, "run hawser doctor --conf %s"},
	{"bridge-nf", doubtful, "modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1"},
	{"firewalld", doubtful, "add the plugin firewall to the list; after a reload of firewalld run hawser reapply"},
	{"ipvs", doubtful, "remove backend from portmap's entry: with kube-proxy's ipvs, portmap then uses iptables"},
	{"refused-later", doubtful, "correct the value before you install Hawser; hawser check %s lists all such values"},
	{"mixed-plugins", doubtful, "install all plugins from one place: hawser install%s --to %s"},
	{"not-replaced", doubtful, "hawser install%s --to %s replaces them; hawser uninstall --to %[2]s removes Hawser"},
	{"unguarded-loopback", doubtful, "install Hawser's portmap, or drop packets to 127.0.0.0/8 (CVE-2020-8558)"},
}

// exitStatus is an error without a message that ends the program with this status.
type exitStatus int

func (e exitStatus) Error() string { return "" }

// facts are the state of the node from which findings are derived.
type facts struct {
	*node.Node
	ctx          context.Context
	query        string      // a pod or container, for findings about it only; empty = all
	lists        []node.List // lists in ConfDir
	allLists     []node.List // lists, and the lists with which attachments were created
	damaged      []error     // lists and records that cannot be decoded
	programs     map[string]program
	attachments  []*node.Attachment
	links        []rtnl.Link
	uplink       rtnl.Link               // the link of the default route; its name is empty without a default route
	routes       map[string][]rtnl.Route // by link name; host ends of containers are omitted
	chains       []nft.LiveChain
	baseChains   []*node.BaseChain
	guardedLinks []string // links from which portmap's guard protects 127.0.0.0/8
	problems     []error  // facts that could not be read
	// isUnread is true if lists or attachments could not be read completely, and noRules if rules could not. In these
	// cases, more lists, attachments or rules may exist than those that were read.
	isUnread, noRules bool
	found             []*finding
}

// program is the file of a plugin that a list names.
type program struct {
	file
	path     string
	versions []string
	err      error // the file is missing, or cannot be executed
}

func doctorCommand(s *session) *cobra.Command {
	return s.command("doctor", "Find what is wrong on this node, and how to fix it", func(string) error {
		f := gather(s.ctx, s.Node)
		found := f.findings()
		err := s.show(found, func(t table) {
			for _, f := range found {
				s.finding(t, f.Severity, f.ID+": "+f.What, f.Advice)
			}
			if len(found) == 0 && len(f.problems) == 0 {
				t.row("nothing is wrong")
			}
		})
		switch readErr := errors.Join(f.problems...); {
		case err != nil:
			return err
		case readErr != nil:
			return fmt.Errorf("some facts could not be read: %w%w", readErr, exitStatus(2))
		case slices.ContainsFunc(found, func(f *finding) bool { return f.Severity == broken }):
			return exitStatus(1)
		}
		return nil
	})
}

// add adds a finding and returns it, so that the caller can change it.
func (f *facts) add(id, format string, args ...any) *finding {
	item := &finding{kindByID(id), fmt.Sprintf(format, args...)}
	f.found = append(f.found, item)
	return item
}

// advise replaces the formatting verbs of the advice.
func (f *finding) advise(args ...any) { f.Advice = fmt.Sprintf(f.Advice, args...) }

func kindByID(id string) findingKind {
	return kinds[slices.IndexFunc(kinds, func(k findingKind) bool { return k.ID == id })]
}

// isSelected reports whether findings about the attachment are wanted.
func (f *facts) isSelected(a *node.Attachment) bool {
	return f.query == "" || node.Matches(f.query, a.Pod, a.ContainerID)
}

// addAll adds one finding about all names, if there are any.
func (f *facts) addAll(id, format string, names []string) {
	if len(names) > 0 {
		f.add(id, format, summarize(names))
	}
}

// findings returns the findings, errors first, in the order of their kinds. drifts runs before drops, which uses the
// findings of drifts.
func (f *facts) findings() []*finding {
	for _, find := range []func(*facts){
		missingPlugins, badLists, noSubnets, unknownVersions, refusedLists, fullRanges, overlaps, lostLeases,
		forwardingOff, ipv6Disabled, notReady, vlanUplinks, otherDefaults, otherDirectories, orphans, drifts,
		flushedFirewalld, drops, missingModules, changedMACs, guards, otherSoftware, mixedPlugins,
	} {
		find(f)
	}
	rank := func(f *finding) int {
		rank := slices.IndexFunc(kinds, func(k findingKind) bool { return k.ID == f.ID })
		if f.Severity == doubtful {
			rank += len(kinds)
		}
		return rank
	}
	sort.SliceStable(f.found, func(i, j int) bool { return rank(f.found[i]) < rank(f.found[j]) })
	return f.found
}

// gather reads the facts from the node, once.
func gather(ctx context.Context, n *node.Node) *facts {
	f := &facts{Node: n, ctx: ctx, programs: map[string]program{}, routes: map[string][]rtnl.Route{}}
	var err error
	f.lists, err = n.Lists()
	f.addError(err)
	f.attachments, err = n.Attachments(ctx)
	f.addError(err)
	f.isUnread = len(f.problems) > 0
	f.allLists = slices.Concat(f.lists, node.CachedLists(f.attachments))
	for _, list := range f.allLists {
		for _, plugin := range typesOf(list.ResolveFlannel("")) { // in place: all findings see the delegates
			if _, known := f.programs[plugin]; !known {
				f.programs[plugin] = findProgram(ctx, n, plugin)
			}
		}
	}
	f.addError(f.gatherLinks())
	f.uplink, _ = uplink()
	count := len(f.problems)
	f.addError(nft.IfSupported(f.gatherRules()))
	f.noRules = len(f.problems) > count
	return f
}

// addError adds an error of a file that cannot be decoded to damaged, and any other error to problems.
func (f *facts) addError(err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			f.addError(e)
		}
		return
	}
	isKnown := func(known error) bool { return known.Error() == err.Error() }
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	switch {
	case err == nil || slices.ContainsFunc(append(f.damaged, f.problems...), isKnown):
	case errors.As(err, &syntax), errors.As(err, &mismatch), errors.Is(err, io.ErrUnexpectedEOF):
		f.damaged = append(f.damaged, err)
	default:
		f.problems = append(f.problems, err)
	}
}

func (f *facts) gatherLinks() (err error) {
	host := rtnl.Host()
	defer host.Close()
	if f.links, err = host.Links(); err != nil {
		return err
	}
	for _, l := range f.links {
		if isHostEnd(l) {
			continue
		}
		routes, err := host.Routes(l.Index, 0)
		if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return err
		}
		f.routes[l.Name] = routes
	}
	return nil
}

// isHostEnd reports whether a link is the host end of a container's pair, by the names that the plugins choose.
func isHostEnd(l rtnl.Link) bool { return l.IsPairEnd() && strings.HasPrefix(l.Name, "veth") }

func (f *facts) gatherRules() (err error) {
	nf := nft.New()
	defer nf.Close()
	if f.chains, err = nf.Chains(nft.Table{}); err != nil {
		return err
	}
	isGuard := func(c nft.LiveChain) bool {
		return c.Table == ownTable() && strings.HasPrefix(c.Name, "portmap_guard_")
	}
	if slices.ContainsFunc(f.chains, isGuard) {
		set, err := nf.Elements(ownTable(), "portmap_localnet_v1")
		f.addError(err)
		for _, e := range set {
			f.guardedLinks = append(f.guardedLinks, strings.TrimRight(string(e.Key), "\x00"))
		}
	}
	f.baseChains, err = node.BaseChains(f.ctx)
	return err
}

func ownTable() nft.Table { return nft.Table{Family: nft.INet, Name: nft.TableName} }

// typesOf returns the plugins that a list names.
func typesOf(list node.List) (types []string) {
	for _, e := range list.Plugins {
		types = append(types, e.Type)
		if e.IPAM.Type != "" {
			types = append(types, e.IPAM.Type)
		}
		if e.SubnetFile != "" {
			types = append(types, "flannel")
		}
	}
	return types
}

func uses(list node.List, plugin string) bool {
	return slices.ContainsFunc(typesOf(list), func(name string) bool { return cni.IsPlugin(name, plugin) })
}

// findProgram executes a plugin's file with VERSION, as runtimes do, to get the versions that it supports.
func findProgram(ctx context.Context, n *node.Node, plugin string) (p program) {
	if p.path, p.err = n.Find(plugin); p.err != nil {
		return p
	}
	if p.file, p.err = inspect(p.path, plugin, nil); p.err != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	list := node.List{CNIVersion: cni.Newest, Plugins: []node.Entry{{Type: plugin}}}
	answer, err := n.Run(ctx, node.Call{Command: "VERSION", Attachment: &node.Attachment{}, List: list})
	var doc struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(answer)).Decode(&doc)
	}
	refusal, isRefused := errors.AsType[*cni.Error](err)
	switch {
	case isRefused && strings.Contains(refusal.Msg, "unknown CNI_COMMAND"): // VERSION is new in 0.2.0
	case isRefused:
		p.err = fmt.Errorf("plugin %q fails: %s", plugin, strings.TrimPrefix(refusal.Msg, plugin+": "))
	case err != nil:
		p.err = fmt.Errorf("plugin %q does not answer VERSION: %w", plugin, err)
	}
	p.versions = doc.SupportedVersions
	return p
}

// sysctlName returns the name that sysctl(8) has for a path below /proc/sys/net.
func sysctlName(path string) string {
	return "net." + strings.NewReplacer("/", ".", ".", "/").Replace(path)
}

// readSetting returns a value below /proc/sys/net; empty if it does not exist.
func readSetting(path string) string {
	value, _ := os.ReadFile("/proc/sys/net/" + path)
	return strings.TrimSpace(string(value))
}
