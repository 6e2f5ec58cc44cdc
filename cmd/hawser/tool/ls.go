package tool

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
)

func lsCommand(s *session) *cobra.Command {
	var orphans, loopback bool
	c := s.command("ls [NETWORK]", "List the attachments of this node, and leftovers of former ones",
		func(network string) error {
			all, err := s.Attachments(s.ctx)
			all = slices.DeleteFunc(all, func(a *node.Attachment) bool {
				return orphans && a.Orphan == "" || network != "" && a.Network != network ||
					a.IsLoopback() && !loopback && network == ""
			})
			return errors.Join(s.show(all, func(t table) { listAttachments(t, all) }), err)
		})
	c.Flags().BoolVar(&orphans, "orphans", false, "only attachments of containers that no longer exist")
	c.Flags().BoolVar(&loopback, "loopback", false, "also the attachments of loopback interfaces")
	return c
}

func listAttachments(t table, all []*node.Attachment) {
	t.row("NETWORK", "POD OR CONTAINER", "INTERFACE", "ADDRESSES", "HOST END", "HOST PORTS", "MORE", "SINCE", "NOTE")
	for _, a := range all {
		more := append(a.Held(cni.HeldLimit), append(a.Held(cni.HeldAccept), a.Held(cni.HeldRouting)...)...)
		note := a.Orphan
		if note == "" && a.Reference {
			note = "created by the reference plugins"
		}
		columns := []string{cmp.Or(a.Network, "?"), nameOf(a.Pod, a.ContainerID), cmp.Or(a.IfName, "?"),
			strings.Join(a.Addresses(), " "), node.FirstWord(a.HostEnd()), strings.Join(a.Held(cni.HeldPort), ", "),
			strings.Join(more, ", "), formatTime(a.Since), note}
		for i, text := range columns {
			columns[i] = cmp.Or(text, "-")
		}
		t.row(columns...)
	}
}
