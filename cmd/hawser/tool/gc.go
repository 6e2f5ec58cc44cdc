package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
)

// collection is the result of one run.
type collection struct {
	Source      string     `json:"source"`
	Silent      []string   `json:"silent"`
	Attachments []*garbage `json:"attachments"`

	node    *node.Node
	minAge  node.MinAge
	damaged error // errors of single files
}

// garbage is an attachment with the reason to remove it or to keep it.
type garbage struct {
	cni.Attachment
	Pod   string `json:"pod,omitempty"`
	Why   string `json:"why,omitempty"`
	Kept  string `json:"kept,omitempty"`
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`

	former *node.Attachment // its state before the removal
	list   node.List        // the list for its removal
	err    error            // why holdings may be left
}

func gcCommand(s *session) *cobra.Command {
	var yes bool
	var older node.MinAge
	c := s.command("gc", "Show leftovers of ended containers, and with --yes remove them", func(string) error {
		found, err := collect(s.ctx, s.Node, older, yes)
		if found == nil {
			return fmt.Errorf("nothing was removed: %w", err)
		}
		err = errors.Join(s.show(found, func(t table) { found.print(t, yes) }), err)
		return withDamaged(found.damaged, err)
	})
	c.Flags().BoolVar(&yes, "yes", false, "remove the garbage")
	addOlder(c.Flags(), &older)
	return c
}

// addOlder sets the default of a minimum age, and adds the option --older, which sets both of its parts.
func addOlder(f *pflag.FlagSet, age *node.MinAge) {
	*age = node.MinAge{Any: 5 * time.Minute, Pinned: time.Hour}
	const usage = "keep attachments that were written within this `duration` (5m; while their namespace exists, 1h)"
	f.Func("older", usage, func(text string) error {
		older, err := time.ParseDuration(text)
		if *age = (node.MinAge{Any: older, Pinned: older}); older < 0 {
			err = errors.New("it is negative; pass the minimum age, such as 5m")
		}
		return err
	})
}

// withDamaged adds the errors of damaged files to err. Without err, they do not change the exit status.
func withDamaged(damaged, err error) error {
	if damaged == nil || err != nil {
		return errors.Join(damaged, err)
	}
	return fmt.Errorf("%w%w", damaged, exitStatus(0))
}

func collect(ctx context.Context, n *node.Node, older node.MinAge, yes bool) (*collection, error) {
	s, err := n.Survey(ctx)
	if err == nil {
		err = s.CheckPIDs()
	}
	if err != nil {
		return nil, err
	}
	source := cmp.Or(strings.Join(s.Answered, ", "), "existing namespaces; no runtime answers")
	found := &collection{Source: source, Silent: append([]string{}, s.Silent...), Attachments: []*garbage{},
		node: n, minAge: older, damaged: s.Damaged}
	for _, a := range s.Attachments {
		g := &garbage{Attachment: a.Attachment, Pod: a.Pod}
		g.Why, g.Kept = s.Classify(a, older)
		found.Attachments = append(found.Attachments, g)
	}
	if !yes {
		return found, nil
	}
	return found, found.remove(ctx)
}

// remove detaches the garbage with its lists, and then removes the holdings that are left.
func (c *collection) remove(ctx context.Context) error {
	err := c.each(ctx, func(g *garbage, a *node.Attachment) {
		if a == nil { // detached since it was listed
			return
		}
		g.former = a
		if g.list, g.err = listOf(c.node, a); g.err == nil {
			g.err = c.node.Detach(ctx, a, g.list)
		}
	})
	if err != nil {
		return err
	}
	err = c.each(ctx, func(g *garbage, a *node.Attachment) {
		if g.former == nil {
			return
		}
		if a != nil {
			g.err = errors.Join(g.err, c.node.DetachRest(ctx, g.former, g.list, a.Holdings))
		}
		if g.err == nil && g.former.File != "" { // libcni's record
			g.err = ignoreAbsent(os.Remove(g.former.File)) // the runtime or another gc may have removed it
		}
		g.Done = g.err == nil
	})
	for _, g := range c.Attachments {
		if g.err != nil {
			g.Error = g.err.Error()
			err = errors.Join(err, fmt.Errorf("%s: %w", g.Attachment, g.err))
		}
	}
	return err
}

// each calls do for each attachment that is still garbage. a is nil if the attachment no longer exists. each repeats
// the survey every second, because containers start and end.
func (c *collection) each(ctx context.Context, do func(g *garbage, a *node.Attachment)) error {
	var s *node.Survey
	var surveyEnd time.Time
	var former []*node.Attachment
	for _, g := range c.Attachments {
		if g.former != nil {
			former = append(former, g.former)
		}
	}
	for _, g := range c.Attachments {
		if g.Why == "" {
			continue
		}
		if time.Now().After(surveyEnd) {
			var err error
			if s, err = c.node.Survey(ctx, former...); err != nil {
				return err
			}
			surveyEnd = time.Now().Add(time.Second)
		}
		k := slices.IndexFunc(s.Attachments, func(a *node.Attachment) bool { return a.Attachment == g.Attachment })
		if k < 0 {
			do(g, nil)
			continue
		}
		merged := *s.Attachments[k]
		if g.former != nil { // its former holdings identify its namespace
			merged.Holdings = slices.Concat(merged.Holdings, g.former.Holdings)
		}
		if g.Why, g.Kept = s.Classify(&merged, c.minAge); g.Why != "" {
			do(g, s.Attachments[k])
		}
	}
	return nil
}

// listOf returns the list in libcni's record, or the node's list of the network.
func listOf(n *node.Node, a *node.Attachment) (node.List, error) {
	if a.File != "" {
		return node.ParseList(a.Config)
	}
	lists, err := n.Lists()
	list := node.FindList(lists, a.Network)
	if list.Plugins != nil {
		err = nil
	}
	return list, err
}

func (c *collection) print(t table, yes bool) {
	t.row("Live containers according to: " + c.Source)
	for _, text := range c.Silent {
		t.row("No answer, so only attachments without a namespace are removed: " + text)
	}
	count := 0
	for _, g := range c.Attachments {
		what := "kept: " + g.Kept
		switch {
		case g.Kept == "" && g.Error != "":
			what = "failed: " + g.Error
		case g.Done:
			what = "removed: " + g.Why
		case g.Kept == "":
			what = "garbage: " + g.Why
			count++
		}
		t.row(cmp.Or(g.Network, "?"), nameOf(g.Pod, g.ContainerID), cmp.Or(g.IfName, "?"), what)
	}
	if count > 0 && !yes {
		t.row("Nothing was changed; --yes removes the garbage.")
	}
}
