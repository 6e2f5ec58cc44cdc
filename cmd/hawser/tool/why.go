package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// failure is a record of calls that failed, with what the node says about it today.
type failure struct {
	skel.Failure
	Step   string   `json:"step,omitempty"` // the plugin's place in its list
	Now    string   `json:"now"`            // whether the attachment is there
	Advice string   `json:"advice"`
	Doctor []string `json:"doctor,omitempty"` // what doctor finds now, of the newest one
}

func whyCommand(s *session) *cobra.Command {
	return s.command("why POD|ID|last", "Say why a pod or a container has no network, also when it is gone",
		func(of string) error {
			found, err := why(s.ctx, s.Node, of)
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
// first; for "last" the newest of all.
func why(ctx context.Context, n node.Node, of string) (found []failure, err error) {
	var all []*skel.Failure // as values they would be sorted by a function of their own, of 16 kB
	kept, err := skel.Failures(n.Failures).List()
	if err != nil {
		return nil, err
	}
	for i := range kept {
		all = append(all, &kept[i].Record)
	}
	slices.SortFunc(all, func(a, b *skel.Failure) int { return b.Time.Compare(a.Time) })
	all = slices.DeleteFunc(all, func(f *skel.Failure) bool {
		return of != "last" && !node.IsMeant(of, f.Pod, f.ContainerID)
	})
	if len(all) == 0 {
		return nil, withoutRecord(ctx, n, of)
	}
	if of == "last" {
		of = all[0].ContainerID
		all = slices.DeleteFunc(all, func(f *skel.Failure) bool { return f.ContainerID != of })
	}
	f := gather(ctx, n)
	var networks []string
	for _, r := range all {
		is := now(*r, f.attached)
		if is == "" {
			is = cmp.Or(strings.Join(f.unread(), "; "), "nothing of it is left")
		}
		found = append(found, failure{Failure: *r, Step: placeIn(n, *r), Now: is, Advice: advice(*r)})
		if strings.HasPrefix(is, attachedLater) {
			found[len(found)-1].Advice = ""
		}
		networks = append(networks, r.Network)
	}
	f.of = cmp.Or(all[0].Pod, of)
	found[0].Doctor = f.reasons(networks)
	return found, nil
}

// withoutRecord says what the node tells of a pod without a record: where a runtime remembers it, and what doctor finds
// today that would be a reason.
func withoutRecord(ctx context.Context, n node.Node, of string) error {
	f := gather(ctx, n)
	lines := []string{fmt.Sprintf("no call of ours that failed for %q is on record in %s", of, n.Failures),
		"plugins of others leave no records, nor does one that is missing"}
	var networks []string
	for _, a := range f.attached {
		if a.File != "" && node.IsMeant(of, a.Pod, a.ContainerID) {
			networks = append(networks, a.Network)
			lines = append(lines, plain("a runtime remembers "+who(a)+": "+cmp.Or(a.Orphan, "it is attached")))
		}
	}
	f.of = of
	reasons := f.reasons(networks)
	if len(reasons) == 0 {
		reasons = []string{"nothing"}
	}
	lines = append(append(lines, "what doctor finds that would be a reason:"), reasons...)
	return errors.New(strings.Join(lines, "\n"))
}

// reasons are the errors that doctor finds, of these networks if any, and what it could not look at.
func (f *facts) reasons(networks []string) (lines []string) {
	for _, found := range f.findings() {
		is := func(network string) bool { return strings.Contains(found.What, fmt.Sprintf("%q", network)) }
		isOfOthers := strings.Contains(found.What, `network "`) && !slices.ContainsFunc(networks, is)
		isReason := found.Severity == broken || found.ID == "full-range"
		if isReason && (len(networks) == 0 || !isOfOthers) {
			lines = append(lines, oneLine(found.ID+": "+found.What+"; "+found.Advice))
		}
	}
	return append(lines, f.unread()...)
}

// unread are lines about what could not be looked at.
func (f *facts) unread() (lines []string) {
	for _, err := range f.problems {
		lines = append(lines, oneLine("could not be looked at: "+err.Error()))
	}
	return lines
}

// placeIn is the place of the plugin in the list of the network.
func placeIn(n node.Node, f skel.Failure) string {
	lists, _ := n.Lists()
	list := node.ListOf(lists, f.Network).Called("")
	for i, e := range list.Plugins {
		at := fmt.Sprintf("plugin %d of %d in %s", i+1, len(list.Plugins), list.File)
		if e.Is(f.Plugin) {
			return at
		}
		if e.HasIPAM(f.Plugin) {
			return "IPAM of " + at
		}
	}
	return ""
}

const attachedLater = "it is attached: a later call succeeded"

// now says what is there of the attachment of a call that failed, and of its pod on that network; empty for nothing.
func now(f skel.Failure, attached []*node.Attachment) string {
	var left, again string
	for _, a := range attached {
		isPods := f.Pod != "" && a.Pod == f.Pod && a.Network == f.Network && a.IfName == f.IfName
		switch isLater := f.Command == "ADD" && !a.Written.Before(f.Time); {
		case a.Attachment == f.Attachment && a.Orphan != "":
			left = "something of it is left: " + a.Orphan
		case a.Attachment == f.Attachment && isLater:
			return attachedLater
		case a.Attachment == f.Attachment:
			return "it is attached"
		case isPods && a.IsLive() && isLater:
			again = attachedLater + ", as container " + nameOf("", a.ContainerID)
		}
	}
	return joined("; ", again, left)
}

// advice is what to do about a failure whose message does not say it.
func advice(f skel.Failure) string {
	return map[uint]string{
		cni.CodeIncompatibleVersion: "write a cniVersion into the network list that every plugin of it knows",
		cni.CodeUnsupportedField:    "the kernel or the interface cannot do it: leave the key out, or load the module",
		cni.CodeUnknownContainer:    "the container was gone already; the runtime tries again with a new one",
		cni.CodeEnvironment:         "the runtime's call is wrong, or a plugin is missing: hawser check",
		cni.CodeIO:                  "look at that file system (full, read-only), or install the program",
		cni.CodeDecode:              "the network list is no valid JSON: hawser check",
		cni.CodeConfig:              "change the named key of the network list: hawser check",
		cni.CodeTryAgain:            "the runtime tries again; enlarge a range that is full, end who holds the lock",
		cni.CodeUnavailable:         "what the plugin needs of the node is missing: hawser doctor",
		cni.CodeExists:              "a container of this ID is attached already; the runtime has to delete it first",
		cni.CodeDrift:               "somebody changed what ADD had made: hawser reapply",
		cni.CodeIPAM:                "look at the IPAM plugin's configuration and version",
		cni.CodeConflict:            "something else has the name or the address: hawser explain",
		cni.CodePortTaken:           "another container has the host port: hawser explain PORT",
	}[f.Code]
}

func (f failure) print(t table) {
	times := ""
	if f.Count > 1 {
		times = fmt.Sprintf(", %d times since %s", f.Count, moment(f.First))
	}
	for _, line := range [][]string{
		{"pod:", f.Pod}, {"container:", fmt.Sprintf("%s, interface %s", f.ContainerID, cmp.Or(f.IfName, "?"))},
		{"network:", f.Network}, {"failed:", fmt.Sprintf("%s at %s%s", f.Command, moment(f.Time), times)},
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
