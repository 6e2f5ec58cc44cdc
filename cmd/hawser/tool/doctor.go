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

// kindOf is a kind of findings; its ID has a section in docs/doctor.md.
type kindOf struct {
	ID       string `json:"id"`
	Severity string `json:"severity"`
	Advice   string `json:"advice"`
}

type finding struct {
	kindOf
	What string `json:"what"`
}

const (
	broken   = "error"   // containers have no network, or the next one will not
	doubtful = "warning" // it works, and will not for ever or for all
)

// kinds begin with the gravest, and with what nodes meet most often.
var kinds = []kindOf{
	{"missing-plugin", broken, "install it (hawser install), or take it out of the list: without it DEL fails"},
	{"bad-file", broken, "correct the list (hawser check); end the container of a damaged record, and remove the file"},
	{"no-list", broken, "write one, or look why the network's own installer did not: the node is not ready"},
	{"no-subnet", broken, "look why flanneld does not run, or has no subnet (kubectl logs; podCIDR of the node)"},
	{"unknown-version", broken, "write a cniVersion that all plugins of the list know, or install newer ones"},
	{"refused-list", broken, "change it: PLUGIN --check-config < FILE says all that is refused"},
	{"full-range", broken, "hawser ls says whose they are; release those of the dead (hawser gc), or add a range"},
	{"overlapping-ranges", broken, "give each network a subnet of its own: two containers get the same address"},
	{"overlapping-route", broken, "give the network another subnet: packets to its containers go elsewhere"},
	{"lost-lease", broken, "replace these containers: another one may get their address"},
	{"forwarding-off", broken, "set it to 1, and take the 0 out of /etc/sysctl.d"},
	{"drop-policy", broken, "add the plugin firewall to the list, or to the chain a rule that accepts containers"},
	{"missing-module", broken, "install the kernel's package of extra modules, or leave the plugin out of the list"},
	{"missing-guard", broken, "hawser reapply, and look who flushes the rules: containers reach the host's 127.0.0.1"},
	{"drift", broken, "hawser reapply makes it again; look who takes it away (hawser watch does so at once)"},
	{"changed-mac", doubtful, "set it back (ip link set dev NAME address MAC), and MACAddressPolicy to none for udev"},
	{"orphan-lease", doubtful, "hawser ls --orphans says why they are nobody's; hawser gc removes them"},
	{"leftover", doubtful, "hawser ls --orphans says why it is nobody's; hawser gc removes it"},
	{"nearly-full-range", doubtful, "add a range to the set, or release those of containers that are gone (hawser gc)"},
	{"name-twice", doubtful, "give one of them another name, or remove it: each runtime takes another one"},
	{"covered-route", doubtful, "give the network another subnet where the hosts behind that route are needed"},
	{"bridge-nf", doubtful, "modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1"},
	{"firewalld", doubtful, "add the plugin firewall to the list; after a reload of firewalld run hawser reapply"},
	{"ipvs", doubtful, "take backend out of portmap's entry: beside kube-proxy's ipvs it takes iptables"},
	{"refused-later", doubtful, "change it before you install ours; what is installed may accept it"},
	{"mixed-plugins", doubtful, "install all from one place: hawser install"},
	{"not-replaced", doubtful, "hawser install replaces the reference's plugins; hawser uninstall removes Hawser"},
	{"unguarded-loopback", doubtful, "install our portmap, or drop what comes for 127.0.0.0/8 (CVE-2020-8558)"},
}

// exitStatus is an error that ends the program with a status, and says nothing.
type exitStatus int

func (e exitStatus) Error() string { return "" }

// facts are what the findings are made of.
type facts struct {
	node.Node
	ctx      context.Context
	of       string      // the pod or container that is asked for; empty for all
	lists    []node.List // of the directory
	all      []node.List // and those by which attachments were made
	damaged  []error     // of lists and records that cannot be read
	programs map[string]program
	attached []*node.Attachment
	links    []rtnl.Link
	routes   map[string][]rtnl.Route // by the link's name; not of containers' host ends
	chains   []nft.LiveChain
	hooked   []node.BaseChain
	zones    []node.RuleSummary // firewalld's
	guarded  []string           // links that portmap's guard of 127.0.0.0/8 has
	problems []error            // what could not be looked at
	// isUnread says that lists or attachments are not all known, noRules that rules are not: what is missing among them
	// may be there.
	isUnread, noRules bool
	found             []*finding
}

// program is the file of a plugin that a list names.
type program struct {
	file
	path     string
	versions []string
	err      error // it is missing, or cannot be run
}

func doctorCommand(s *session) *cobra.Command {
	return s.command("doctor", "Say what is wrong on this node, and what to do", func(string) error {
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
		switch unseen := errors.Join(f.problems...); {
		case err != nil:
			return err
		case unseen != nil:
			return fmt.Errorf("not all could be looked at: %w%w", unseen, exitStatus(2))
		case slices.ContainsFunc(found, func(f *finding) bool { return f.Severity == broken }):
			return exitStatus(1)
		}
		return nil
	})
}

// say adds a finding, which may still be changed.
func (f *facts) say(id, format string, args ...any) *finding {
	said := &finding{kindNamed(id), fmt.Sprintf(format, args...)}
	f.found = append(f.found, said)
	return said
}

func kindNamed(id string) kindOf {
	return kinds[slices.IndexFunc(kinds, func(k kindOf) bool { return k.ID == id })]
}

// isMeant says whether the attachment is one of those that are asked for.
func (f *facts) isMeant(a *node.Attachment) bool {
	return f.of == "" || node.IsMeant(f.of, a.Pod, a.ContainerID)
}

// sayOf adds a finding about things, where there are any.
func (f *facts) sayOf(id, format string, names []string) {
	if len(names) > 0 {
		f.say(id, format, some(names))
	}
}

// findings are in the order of their kinds, errors first. dropPolicies asks what drifted has found.
func (f *facts) findings() []*finding {
	for _, look := range []func(*facts){
		missingPlugins, badLists, noSubnets, unknownVersions, refusedLists, fullRanges, overlaps, lostLeases,
		forwardingOff, orphans, drifted, dropPolicies, dropRules, missingModules, changedMACs, guards, beside,
		mixedPlugins,
	} {
		look(f)
	}
	rank := func(f *finding) int {
		rank := slices.IndexFunc(kinds, func(k kindOf) bool { return k.ID == f.ID })
		if f.Severity == doubtful {
			rank += len(kinds)
		}
		return rank
	}
	sort.SliceStable(f.found, func(i, j int) bool { return rank(f.found[i]) < rank(f.found[j]) })
	return f.found
}

// gather looks at the node once.
func gather(ctx context.Context, n node.Node) *facts {
	f := &facts{Node: n, ctx: ctx, programs: map[string]program{}, routes: map[string][]rtnl.Route{}}
	var err error
	f.lists, err = n.Lists()
	f.note(err)
	f.attached, err = n.Attachments(ctx)
	f.note(err)
	f.isUnread = len(f.problems) > 0
	f.all = slices.Concat(f.lists, node.ListsOf(f.attached))
	for _, list := range f.all {
		for _, plugin := range typesOf(list.Called("")) {
			if _, known := f.programs[plugin]; !known {
				f.programs[plugin] = learnProgram(ctx, n, plugin)
			}
		}
	}
	f.note(f.gatherLinks())
	unread := len(f.problems)
	f.note(nft.IfSupported(f.gatherRules()))
	f.noRules = len(f.problems) > unread
	return f
}

// note keeps an error of a file that cannot be read as a finding, and any other one as what could not be looked at.
func (f *facts) note(err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			f.note(e)
		}
		return
	}
	isKnown := func(known error) bool { return known.Error() == err.Error() }
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil || slices.ContainsFunc(append(f.damaged, f.problems...), isKnown):
	case errors.As(err, &syntax), errors.As(err, &kind), errors.Is(err, io.ErrUnexpectedEOF):
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
		if l.IsPairEnd() && strings.HasPrefix(l.Name, "veth") {
			continue // a container's
		}
		routes, err := host.Routes(l.Index, 0)
		if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return err
		}
		f.routes[l.Name] = routes
	}
	return nil
}

func (f *facts) gatherRules() (err error) {
	nf := nft.New()
	defer nf.Close()
	if f.chains, err = nf.Chains(nft.Table{}); err != nil {
		return err
	}
	isGuard := func(c nft.LiveChain) bool { return c.Table == ownTable() && c.Name == "portmap_guard_v1" }
	if slices.ContainsFunc(f.chains, isGuard) {
		set, err := nf.Elements(ownTable(), "portmap_localnet_v1")
		f.note(err)
		for _, e := range set {
			f.guarded = append(f.guarded, strings.TrimRight(string(e.Key), "\x00"))
		}
	}
	if slices.ContainsFunc(f.chains, isFirewalld) {
		f.zones, err = node.ReadRules(nf, nft.Table{Family: nft.INet, Name: "firewalld"}, "")
		f.note(err)
	}
	f.hooked, err = node.BaseChains(f.ctx)
	return err
}

func isFirewalld(c nft.LiveChain) bool { return c.Table.Name == "firewalld" }

func ownTable() nft.Table { return nft.Table{Family: nft.INet, Name: nft.TableName} }

// typesOf are the plugins that a list names.
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

// uses reports whether a list names the plugin.
func uses(list node.List, plugin string) bool {
	return slices.ContainsFunc(typesOf(list), func(name string) bool { return cni.IsPlugin(name, plugin) })
}

// learnProgram asks the plugin's file for the versions that it knows, as runtimes do.
func learnProgram(ctx context.Context, n node.Node, plugin string) (p program) {
	if p.path, p.err = n.Find(plugin); p.err != nil {
		return p
	}
	if p.file, p.err = inspect(p.path, plugin, nil); p.err != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	asks := node.List{CNIVersion: cni.Newest, Plugins: []node.Entry{{Type: plugin}}}
	answer, err := n.Run(ctx, node.Call{Command: "VERSION", Attachment: &node.Attachment{}, List: asks})
	var doc struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(answer)).Decode(&doc)
	}
	var refused *cni.Error
	switch {
	case errors.As(err, &refused) && refused.Code == cni.CodeConfig: // ours: the file has no plugin of that name
		p.err = fmt.Errorf("plugin %q fails: %s", plugin, strings.TrimPrefix(refused.Msg, plugin+": "))
	case refused != nil: // of a plugin before 0.2.0
	case err != nil:
		p.err = fmt.Errorf("plugin %q does not say which versions it knows: %w", plugin, err)
	}
	p.versions = doc.SupportedVersions
	return p
}

// readSetting is a value below /proc/sys/net; empty where there is none.
func readSetting(path string) string {
	value, _ := os.ReadFile("/proc/sys/net/" + path)
	return strings.TrimSpace(string(value))
}
