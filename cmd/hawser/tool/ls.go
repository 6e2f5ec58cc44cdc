package tool

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
)

func lsCommand(n *node.Node, asJSON *bool) *cobra.Command {
	var orphans bool
	c := &cobra.Command{
		Use: "ls [NETWORK]", Short: "List what is attached on this node, and what is left of what was",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			all, err := n.Attachments(c.Context())
			all = slices.DeleteFunc(all, func(a *node.Attachment) bool {
				return orphans && a.Orphan == "" || len(args) > 0 && a.Network != args[0]
			})
			text := func(out io.Writer) { listAttachments(out, all) }
			return errors.Join(show(c.OutOrStdout(), *asJSON, all, text), err)
		},
	}
	c.Flags().BoolVar(&orphans, "orphans", false, "only what nobody needs any more, as far as the node can tell")
	return c
}

func listAttachments(out io.Writer, all []*node.Attachment) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "NETWORK\tPOD OR CONTAINER\tINTERFACE\tADDRESSES\tHOST END\tHOST PORTS\tMORE\tSINCE\tNOTE")
	for _, a := range all {
		more := append(a.Held(cni.HeldLimit), append(a.Held(cni.HeldAccept), a.Held(cni.HeldRouting)...)...)
		note := a.Orphan
		if note == "" && a.Reference {
			note = "by the reference's plugins"
		}
		since := ""
		if !a.Since.IsZero() {
			since = a.Since.Local().Format(time.DateTime)
		}
		columns := []string{cmp.Or(a.Network, "?"), cmp.Or(a.Pod, shortID(a.ContainerID)), cmp.Or(a.IfName, "?"),
			strings.Join(a.Addresses(), " "), node.FirstWord(a.HostEnd()), strings.Join(a.Held(cni.HeldPort), ", "),
			strings.Join(more, ", "), since, note}
		for i, text := range columns {
			columns[i] = cmp.Or(plain(text), "-")
		}
		fmt.Fprintln(w, strings.Join(columns, "\t"))
	}
}

// shortID is as much of a container's ID as runtimes show.
func shortID(id string) string { return id[:min(len(id), 13)] }
