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

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
)

// collection is what one run found, and did.
type collection struct {
	Source      string     `json:"source"`
	Silent      []string   `json:"silent"`
	Attachments []*garbage `json:"attachments"`

	node    node.Node
	older   time.Duration // what is younger is left alone
	damaged error         // of files that cannot be read
}

// garbage is an attachment, with the reason to collect it or to keep it.
type garbage struct {
	cni.Attachment
	Pod   string `json:"pod,omitempty"`
	Why   string `json:"why,omitempty"`
	Kept  string `json:"kept,omitempty"`
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`

	was  *node.Attachment // when its removal began
	list node.List        // by which
	err  error            // is about what is still there, or may be
}

func gcCommand(s *session) *cobra.Command {
	var yes bool
	older := 5 * time.Minute
	c := s.command("gc", "Show what no runtime knows any more, and with --yes remove it", func(string) error {
		if older < 0 {
			return fmt.Errorf("--older: %s is negative; give the least age, as 5m", older)
		}
		found, err := collect(s.ctx, s.Node, older, yes)
		if found == nil {
			return fmt.Errorf("nothing was removed: %w", err)
		}
		err = errors.Join(s.show(found, func(t table) { found.print(t, yes) }), err)
		return noting(found.damaged, err)
	})
	c.Flags().BoolVar(&yes, "yes", false, "remove it")
	c.Flags().DurationVar(&older, "older", older, "leave alone what was written within this `duration`")
	return c
}

// noting says what was damaged, which alone is no failure.
func noting(damaged, err error) error {
	if damaged == nil || err != nil {
		return errors.Join(damaged, err)
	}
	return fmt.Errorf("%w%w", damaged, exitStatus(0))
}

func collect(ctx context.Context, n node.Node, older time.Duration, yes bool) (*collection, error) {
	s, err := n.Survey(ctx)
	if err == nil {
		err = s.Blind()
	}
	if err != nil {
		return nil, err
	}
	source := cmp.Or(strings.Join(s.Asked, ", "), "namespaces that live: no runtime answers")
	found := &collection{Source: source, Silent: append([]string{}, s.Silent...), Attachments: []*garbage{},
		node: n, older: older, damaged: s.Damaged}
	for _, a := range s.Attachments {
		g := &garbage{Attachment: a.Attachment, Pod: a.Pod}
		g.Why, g.Kept = s.Judge(a, older)
		found.Attachments = append(found.Attachments, g)
	}
	if !yes {
		return found, nil
	}
	return found, found.remove(ctx)
}

// remove detaches what is garbage by its list, and then takes what that has left.
func (c *collection) remove(ctx context.Context) error {
	err := c.each(ctx, func(g *garbage, a *node.Attachment) {
		if a == nil { // it ended meanwhile
			return
		}
		g.was = a
		if g.list, g.err = listOf(c.node, a); g.err == nil {
			g.err = c.node.Detach(ctx, a, g.list)
		}
	})
	if err != nil {
		return err
	}
	err = c.each(ctx, func(g *garbage, a *node.Attachment) {
		if g.was == nil {
			return
		}
		if a != nil {
			g.err = errors.Join(g.err, c.node.DetachLeft(ctx, g.was, g.list, a.Holdings))
		}
		if g.err == nil && g.was.File != "" { // the runtime forgets it
			g.err = os.Remove(g.was.File)
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

// each does something with all garbage, of which a is what is there; nil for nothing. It looks at the node again once a
// second: containers come and go.
func (c *collection) each(ctx context.Context, do func(g *garbage, a *node.Attachment)) error {
	var s *node.Survey
	var end time.Time
	var former []*node.Attachment
	for _, g := range c.Attachments {
		if g.was != nil {
			former = append(former, g.was)
		}
	}
	for _, g := range c.Attachments {
		if g.Why == "" {
			continue
		}
		if time.Now().After(end) {
			var err error
			if s, err = c.node.Survey(ctx, former...); err != nil {
				return err
			}
			end = time.Now().Add(time.Second)
		}
		k := slices.IndexFunc(s.Attachments, func(a *node.Attachment) bool { return a.Attachment == g.Attachment })
		if k < 0 {
			do(g, nil)
			continue
		}
		known := *s.Attachments[k]
		if g.was != nil { // by the addresses that it had
			known.Holdings = slices.Concat(known.Holdings, g.was.Holdings)
		}
		if g.Why, g.Kept = s.Judge(&known, c.older); g.Why != "" {
			do(g, s.Attachments[k])
		}
	}
	return nil
}

// listOf is the list that the runtime remembers, or else the node's of the network, if there is one.
func listOf(n node.Node, a *node.Attachment) (node.List, error) {
	if a.File != "" {
		return node.ParseList(a.Config)
	}
	lists, err := n.Lists()
	list := node.ListOf(lists, a.Network)
	if list.Plugins != nil {
		err = nil
	}
	return list, err
}

func (c *collection) print(t table, yes bool) {
	t.row("Who lives is known from: " + c.Source)
	for _, text := range c.Silent {
		t.row("No answer, so that only what has no namespace is removed: " + text)
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
