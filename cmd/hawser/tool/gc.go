package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/semver"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
)

// collection is what one run found, and did.
type collection struct {
	Source      string    `json:"source"`
	Silent      []string  `json:"silent"`
	Attachments []garbage `json:"attachments"`
}

// garbage is an attachment, with the reason to collect it or to keep it.
type garbage struct {
	cni.Attachment
	Pod   string `json:"pod,omitempty"`
	Why   string `json:"why,omitempty"`
	Kept  string `json:"kept,omitempty"`
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
}

func gcCommand(n *node.Node, asJSON *bool) *cobra.Command {
	var yes bool
	older := 5 * time.Minute
	c := &cobra.Command{
		Use: "gc", Short: "Show what no runtime knows any more, and with --yes remove it", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if older < 0 {
				return fmt.Errorf("--older: %s is negative; give the least age, as 5m", older)
			}
			found, err := collect(c.Context(), *n, older, yes)
			if found == nil {
				return fmt.Errorf("nothing was removed: %w", err)
			}
			if *asJSON {
				return errors.Join(writeJSON(c.OutOrStdout(), found), err)
			}
			found.print(c.OutOrStdout(), yes)
			return err
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "remove it")
	c.Flags().DurationVar(&older, "older", older, "leave alone what was written within this `duration`")
	return c
}

func collect(ctx context.Context, n node.Node, older time.Duration, yes bool) (*collection, error) {
	s, err := n.Survey(ctx)
	if err != nil {
		return nil, err
	}
	source := cmp.Or(strings.Join(s.Asked, ", "), "namespaces that live: no runtime answers")
	found := &collection{Source: source, Silent: append([]string{}, s.Silent...), Attachments: []garbage{}}
	var errs []error
	for _, a := range s.Attachments {
		g := garbage{Attachment: a.Attachment, Pod: a.Pod}
		g.Why, g.Kept = s.Judge(a, older)
		if g.Why != "" && yes {
			if err := g.remove(ctx, n, older); err != nil {
				g.Error = err.Error()
				errs = append(errs, fmt.Errorf("%s: %w", g.Attachment, err))
			}
		}
		found.Attachments = append(found.Attachments, g)
	}
	return found, errors.Join(errs...)
}

// remove looks again, and detaches what is still garbage: by the list and the result that the runtime remembers, or
// else by the node's list of the network; and by GC where DEL left something.
func (g *garbage) remove(ctx context.Context, n node.Node, older time.Duration) error {
	a, _, err := g.again(ctx, n, older)
	if a == nil || err != nil {
		return err
	}
	container := node.Container{ID: a.ContainerID, Netns: a.Netns, IfName: a.IfName}
	if a.Cached != nil {
		list, err := node.ParseList(a.Cached.Config)
		if err == nil {
			err = n.Del(ctx, list, a.Cached.Container(), a.Cached.RawResult)
		}
		if err == nil {
			err = os.Remove(a.Cached.File)
		}
		g.Done = err == nil
		return err
	}
	lists, err := n.Lists()
	i := slices.IndexFunc(lists, func(l node.List) bool { return l.Name == a.Network })
	if i < 0 {
		return errors.Join(err, fmt.Errorf("no list of network %q is in %s to detach it by", a.Network, n.ConfDir))
	}
	if err := n.Del(ctx, lists[i], container, nil); err != nil {
		return err
	}
	a, valid, err := g.again(ctx, n, older)
	if a == nil || err != nil {
		g.Done = err == nil
		return err
	}
	if lists[i].NoGC || semver.Compare("v"+lists[i].CNIVersion, "v1.1.0") < 0 {
		return fmt.Errorf("DEL left something, and the list of network %q has no GC (cniVersion 1.1.0)", a.Network)
	}
	var errs []error
	more := map[string]any{"cni.dev/valid-attachments": valid}
	for k := range lists[i].Plugins {
		_, err := n.Run(ctx, node.Call{Command: "GC", List: lists[i], Entry: k, More: more})
		errs = append(errs, err)
	}
	g.Done = errors.Join(errs...) == nil
	return errors.Join(errs...)
}

// again is the attachment as it is now, nil where it is no garbage any more, and all of its network that is kept.
func (g *garbage) again(ctx context.Context, n node.Node, older time.Duration) (*node.Attachment, []any, error) {
	s, err := n.Survey(ctx)
	if err != nil {
		return nil, nil, err
	}
	var now *node.Attachment
	valid := []any{}
	for _, a := range s.Attachments {
		why, kept := s.Judge(a, older)
		switch {
		case a.Attachment == g.Attachment && why != "":
			now = a
		case a.Attachment == g.Attachment:
			g.Why, g.Kept = why, kept
		}
		if why == "" && a.Network == g.Network {
			valid = append(valid, map[string]string{"containerID": a.ContainerID, "ifname": a.IfName})
		}
	}
	return now, valid, nil
}

func (c *collection) print(out io.Writer, yes bool) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintf(w, "Who lives is known from: %s\n", plain(c.Source))
	for _, text := range c.Silent {
		fmt.Fprintf(w, "No answer, so that only what has no namespace is removed: %s\n", plain(text))
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", plain(cmp.Or(g.Network, "?")), plain(cmp.Or(g.Pod, shortID(g.ContainerID))),
			plain(cmp.Or(g.IfName, "?")), plain(what))
	}
	if count > 0 && !yes {
		fmt.Fprintln(w, "Nothing was changed; --yes removes the garbage.")
	}
}
