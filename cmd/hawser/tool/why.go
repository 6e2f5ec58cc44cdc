package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// failure is a record of failed calls, with the current state of the node.
type failure struct {
	skel.Failure
	Step   string   `json:"step,omitempty"` // position of the plugin in its list
	Now    string   `json:"now"`            // whether the container is attached now
	Advice string   `json:"advice"`
	Doctor []string `json:"doctor,omitempty"` // current findings of doctor; only for the newest failure
}

func whyCommand(s *session) *cobra.Command {
	return s.command("why POD|ID|last", "Explain why a pod or a container has no network, even after it ended",
		func(query string) error {
			found, err := why(s.ctx, s.Node, query)
			if err != nil {
				return err
			}
			return s.show(found, func(t table) {
				for i, f := range found {
					if i > 0 {
						t.row()
					}
					f.print(t)
				}
			})
		})
}

// why returns the failures of a pod (namespace/name or name) or container (its ID or the beginning of one), the newest
// first. For "last", it returns the failures of the container that failed last.
func why(ctx context.Context, n *node.Node, query string) (found []failure, err error) {
	var all []*skel.Failure // pointers, because sorting the values would add 16 kB to the program
	records, err := skel.Failures(n.Failures).List()
	if err != nil {
		return nil, err
	}
	for i := range records {
		all = append(all, &records[i].Record)
	}
	slices.SortFunc(all, skel.NewestFirst)
	all = slices.DeleteFunc(all, func(f *skel.Failure) bool {
		return query != "last" && !node.Matches(query, f.Pod, f.ContainerID)
	})
	if len(all) == 0 {
		return nil, noRecordError(ctx, n, query)
	}
	if query == "last" {
		query = all[0].ContainerID
		all = slices.DeleteFunc(all, func(f *skel.Failure) bool { return f.ContainerID != query })
	}
	f := gather(ctx, n)
	var networks []string
	for _, r := range all {
		state := stateOf(*r, f.attachments)
		if state == "" {
			state = cmp.Or(strings.Join(f.unreadLines(), "; "), "it has no holdings")
		}
		step, file := position(n, *r)
		found = append(found, failure{Failure: *r, Step: step, Now: state, Advice: advice(*r, file)})
		if strings.HasPrefix(state, attachedLater) {
			found[len(found)-1].Advice = ""
		}
		networks = append(networks, r.Network)
	}
	f.query = cmp.Or(all[0].Pod, query)
	found[0].Doctor = f.reasons(networks)
	return found, nil
}

// noRecordError returns an error that describes the known state of a pod without a failure record: the runtime's
// attachments, and current findings of doctor that may be the reason.
func noRecordError(ctx context.Context, n *node.Node, query string) error {
	f := gather(ctx, n)
	lines := []string{fmt.Sprintf("no failed call for %q is recorded in %s", query, n.Failures),
		"other projects' plugins and missing programs leave no records"}
	var networks []string
	for _, a := range f.attachments {
		if a.File != "" && node.Matches(query, a.Pod, a.ContainerID) {
			networks = append(networks, a.Network)
			lines = append(lines, plain("libcni has a record of "+describe(a)+": "+cmp.Or(a.Orphan,
				"the container is attached")))
		}
	}
	f.query = query
	reasons := f.reasons(networks)
	if len(reasons) == 0 {
		reasons = []string{"none"}
	}
	lines = append(append(lines, "current findings of doctor that may be the reason:"), reasons...)
	return errors.New(strings.Join(lines, "\n"))
}

// reasons returns the errors that doctor finds, and the facts that could not be read. If networks is not empty, it
// omits findings about other networks.
func (f *facts) reasons(networks []string) (lines []string) {
	for _, found := range f.findings() {
		names := func(network string) bool { return strings.Contains(found.What, fmt.Sprintf("%q", network)) }
		isOther := strings.Contains(found.What, `network "`) && !slices.ContainsFunc(networks, names)
		isReason := found.Severity == broken || found.ID == "full-range"
		if isReason && (len(networks) == 0 || !isOther) {
			lines = append(lines, oneLine(found.ID+": "+found.What+"; "+found.Advice))
		}
	}
	return append(lines, f.unreadLines()...)
}

func (f *facts) unreadLines() (lines []string) {
	for _, err := range f.problems {
		lines = append(lines, oneLine("could not be read: "+err.Error()))
	}
	return lines
}

// position returns the position of the plugin in the network's list, and the list's file.
func position(n *node.Node, f skel.Failure) (step, file string) {
	lists, _ := n.Lists()
	list := node.FindList(lists, f.Network).ResolveFlannel("")
	for i, e := range list.Plugins {
		text := fmt.Sprintf("plugin %d of %d in %s", i+1, len(list.Plugins), list.File)
		if e.Is(f.Plugin) {
			return text, list.File
		}
		if e.HasIPAM(f.Plugin) {
			return "IPAM of " + text, list.File
		}
	}
	return "", list.File
}

const attachedLater = "the container is attached: a later call succeeded"

// stateOf describes whether the attachment of a failed call, or another attachment of its pod to the same network,
// exists now. It returns "" if neither exists.
func stateOf(f skel.Failure, attached []*node.Attachment) string {
	var leftover, later string
	for _, a := range attached {
		isSame := a.Attachment == f.Attachment()
		isSamePod := f.Pod != "" && a.Pod == f.Pod && a.Network == f.Network && a.IfName == f.IfName
		switch isLater := f.Command == "ADD" && !a.Written.Before(f.Time); {
		case isSame && (a.Orphan != "" || a.File == ""):
			leftover = "its objects still exist: " + cmp.Or(a.Orphan, "no runtime has a record of it")
		case isSame && isLater:
			return attachedLater
		case isSame:
			return "the container is attached"
		case isSamePod && a.IsLive() && isLater:
			later = attachedLater + ", as container " + nameOf("", a.ContainerID)
		}
	}
	return joinNonempty("; ", later, leftover)
}

// cause selects failures by code, plugin and message, and has the advice for them. In the advice, FILE is the file of
// the network list, and OBJECT is the first object in the message. Without one, hawser explain OBJECT is omitted.
type cause struct {
	code         uint
	plugin, text string // text is part of the message; empty = any plugin, or any message
	advice       string
}

// causes are in the order in which they are compared. A cause without a text is for all other failures with the code.
var causes = []cause{
	{cni.CodeTryAgain, "", "no IP addresses available", "release stale leases (hawser gc --yes), or add a range"},
	{cni.CodeTryAgain, "", "held by process", "wait until that process ends; the runtime tries again"},
	{cni.CodeTryAgain, "dhcp", "dialing DHCP daemon", "start the daemon: systemctl enable --now cni-dhcp.socket"},
	{cni.CodeTryAgain, "dhcp", "no more tries", "find out why no DHCP server answers: the VLAN, the server's log"},
	{cni.CodeTryAgain, "", "", "the runtime tries again; if it fails again, remove the cause in the message"},
	{cni.CodeConflict, "", "IPv6 is off", "enable IPv6 with the command in the message, also in /etc/sysctl.d"},
	{cni.CodeConflict, "", "the host has it", "exclude the host's address from the range (ipam.exclude)"},
	{cni.CodeConflict, "", "the prefix is shorter than", "write a smaller subnet for the network"},
	{cni.CodeConflict, "", "the host's own router", "write a subnet that the node's network does not use"},
	{cni.CodeConflict, "", ": is in subnet", "write a subnet that no other network of the node uses"},
	{cni.CodeConflict, "", "use another mode", "write another mode than passthru, or another master"},
	{cni.CodeConflict, "", "a passthru must be", "write another mode than passthru, or another master"},
	{cni.CodeConflict, "", "ingressPolicy: ", "write another bridge or another ingressPolicy"},
	{cni.CodeConflict, "", "", "release the name or address, or choose another one: hawser explain OBJECT"},
	{cni.CodeConfig, "", "runtimeConfig.", "the runtime sent the value: correct the pod's annotation or the command"},
	{cni.CodeConfig, "", "args.", "the runtime sent the value: correct the pod's annotation or the command"},
	{cni.CodeConfig, "", "", "correct the named key of the network list: hawser check FILE"},
	{cni.CodeEnvironment, "", "CNI_ARGS", "the runtime sent the value: correct the pod's annotation or the command"},
	{cni.CodeEnvironment, "", "CNI_PATH", "install the missing plugin, or correct its name: hawser check FILE"},
	{cni.CodeEnvironment, "", "", "the runtime's call is wrong, see the message; read the runtime's log"},
	{cni.CodeIncompatibleVersion, "", "", "use a cniVersion in the network list that every plugin of it supports"},
	{cni.CodeUnsupportedField, "", "", "the kernel or the interface cannot do it: remove the key, or load the module"},
	{cni.CodeUnknownContainer, "", "", "the container had ended; if not, the runtime passed a wrong path, see its log"},
	{cni.CodeIO, "", "policy", "correct the administrator's file that the message names"},
	{cni.CodeIO, "", "", "check that file system (full, read-only), or install the program"},
	{cni.CodeDecode, "", "", "the network list is not valid JSON: hawser check FILE"},
	{cni.CodeUnavailable, "", "", "the node lacks something that the plugin needs: hawser doctor"},
	{cni.CodeExists, "", "", "the runtime must call DEL first, or attach the interface under another name"},
	{cni.CodeIPAM, "", "", "check the IPAM plugin's configuration and version"},
	{cni.CodePortTaken, "", "", "another container has the host port: hawser explain OBJECT"},
}

func advice(f skel.Failure, file string) string {
	if f.Code == cni.CodeDrift {
		return driftAdvice(false, f.Plugin)
	}
	i := slices.IndexFunc(causes, func(c cause) bool {
		return c.code == f.Code && (c.plugin == "" || c.plugin == f.Plugin) && strings.Contains(f.Msg, c.text)
	})
	if i < 0 {
		return ""
	}
	text := causes[i].advice
	object := regexp.MustCompile(`^(?:gateway|address|bridge|master:?) "?([^"/ ]+?)(?:/\d+)?"?: |` +
		`IP address (\S+) is|:(\d+/\w+)`)
	if name := object.FindStringSubmatch(f.Msg); name != nil {
		text = strings.Replace(text, "OBJECT", strings.Join(name[1:], ""), 1)
	}
	text = strings.Replace(text, " FILE", strings.TrimRight(" "+file, " "), 1)
	return strings.TrimSuffix(text, ": hawser explain OBJECT")
}

func (f failure) print(t table) {
	times := ""
	if f.Count > 1 {
		times = fmt.Sprintf(", %d times since %s", f.Count, formatTime(f.First))
	}
	for _, line := range [][]string{
		{"pod:", f.Pod}, {"container:", fmt.Sprintf("%s, interface %s", f.ContainerID, cmp.Or(f.IfName, "?"))},
		{"network:", f.Network}, {"failed:", fmt.Sprintf("%s at %s%s", f.Command, formatTime(f.Time), times)},
		{"in:", strings.TrimSuffix(f.Plugin+", "+f.Step, ", ")}, {fmt.Sprintf("code %d:", f.Code), f.Msg},
		{"details:", f.Details}, {"now:", f.Now}, {"what to do:", f.Advice},
	} {
		if line[1] != "" {
			t.row(line...)
		}
	}
	for _, reason := range f.Doctor {
		t.row("doctor finds:", reason)
	}
}
