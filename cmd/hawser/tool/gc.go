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

	removal *node.Removal // that began
	judged  *node.Survey  // by which Why was said
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
			text := func(out io.Writer) { found.print(out, yes) }
			return errors.Join(show(c.OutOrStdout(), *asJSON, found, text), err)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "remove it")
	c.Flags().DurationVar(&older, "older", older, "leave alone what was written within this `duration`")
	return c
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
	found := &collection{Source: source, Silent: append([]string{}, s.Silent...), Attachments: []garbage{}}
	for _, a := range s.Attachments {
		g := garbage{Attachment: a.Attachment, Pod: a.Pod}
		g.Why, g.Kept = s.Judge(a, older)
		found.Attachments = append(found.Attachments, g)
	}
	if !yes {
		return found, nil
	}
	return found, found.remove(ctx, n, older)
}

// remove detaches what is garbage. It looks again before what it removes within a second: containers come and go.
func (c *collection) remove(ctx context.Context, n node.Node, older time.Duration) error {
	var left []*garbage
	for i := range c.Attachments {
		if g := &c.Attachments[i]; g.Why != "" {
			left = append(left, g)
		}
	}
	var errs []error
	for len(left) > 0 {
		s, err := n.Survey(ctx)
		for end := time.Now().Add(time.Second); len(left) > 0 && err == nil; s.Attachments, err = n.Attachments(ctx) {
			there := map[cni.Attachment]*node.Attachment{}
			for _, a := range s.Attachments {
				there[a.Attachment] = a
			}
			var more []*garbage
			for i, g := range left {
				if i > 0 && time.Now().After(end) {
					more = append(more, left[i:]...)
					break
				}
				isDone, failed := g.step(ctx, n, there[g.Attachment], func(a *node.Attachment) {
					if g.judged != s {
						g.judged = s
						g.Why, g.Kept = s.Judge(a, older)
					}
				})
				if errs = append(errs, failed); !isDone {
					more = append(more, g)
				}
			}
			if left = more; time.Now().After(end) {
				break
			}
		}
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(errs...)
}

// step takes the next step to remove what is garbage still, of which a is what is there: DEL by the list, and then what
// that left.
func (g *garbage) step(ctx context.Context, n node.Node, a *node.Attachment, judge func(*node.Attachment)) (isDone bool,
	err error) {
	if a == nil {
		if g.removal == nil { // it ended meanwhile
			return true, nil
		}
		return true, g.end()
	}
	known := *a
	if g.removal != nil { // by the addresses that it had
		known.Holdings = slices.Concat(a.Holdings, g.removal.Holdings)
	}
	if judge(&known); g.Why == "" {
		return true, nil
	}
	if g.removal != nil {
		n.DetachLeft(ctx, g.removal, a.Holdings)
		return true, g.end()
	}
	if g.removal = removalOf(n, a); g.removal.Err != nil {
		return true, g.end()
	}
	n.Detach(ctx, g.removal)
	return false, nil
}

// removalOf is by the list that the runtime remembers, or else by the node's list of the network, if there is one.
func removalOf(n node.Node, a *node.Attachment) *node.Removal {
	r := &node.Removal{Attachment: a}
	if a.Cached != nil {
		r.List, r.Err = node.ParseList(a.Cached.Config)
		return r
	}
	lists, err := n.Lists()
	if r.List = node.ListOf(lists, a.Network); r.List.Plugins == nil {
		r.Err = err
	}
	return r
}

// end forgets what the runtime remembered of an attachment that was removed.
func (g *garbage) end() error {
	r, err := g.removal, g.removal.Err
	if err == nil && r.Cached != nil {
		err = os.Remove(r.Cached.File)
	}
	if g.Done = err == nil; g.Done {
		return nil
	}
	g.Error = err.Error()
	return fmt.Errorf("%s: %w", g.Attachment, err)
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
