package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
)

// repair is what was missing of a plugin's for an attachment. Error says why it still is.
type repair struct {
	cni.Attachment
	Pod     string `json:"pod,omitempty"`
	Plugin  string `json:"plugin"`
	Missing string `json:"missing"`
	Error   string `json:"error,omitempty"`
}

func reapplyCommand(n *node.Node, asJSON *bool) *cobra.Command {
	return &cobra.Command{
		Use: "reapply [CONTAINER]", Short: "Make again what CHECK finds missing of containers that live",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			repairs, err := reapply(c.Context(), *n, strings.Join(args, ""))
			if *asJSON {
				return errors.Join(writeJSON(c.OutOrStdout(), repairs), err)
			}
			for _, r := range repairs {
				what := "made again"
				if r.Error != "" {
					what = "cannot: " + r.Error
				}
				fmt.Fprintln(c.OutOrStdout(), plain(fmt.Sprintf("%s %s %s, %s: %s: %s", r.Network,
					cmp.Or(r.Pod, shortID(r.ContainerID)), r.IfName, r.Plugin, what, gist(r.Missing))))
			}
			if len(repairs) == 0 && err == nil {
				fmt.Fprintln(c.OutOrStdout(), "Nothing is missing.")
			}
			return err
		},
	}
}

// gist is the first line of what CHECK finds missing, and how many more there are.
func gist(text string) string {
	first, rest, isMore := strings.Cut(text, "\n")
	if isMore {
		first += fmt.Sprintf(" (and %d more)", strings.Count(rest, "\n")+1)
	}
	return first
}

// reapply repairs all attachments that live, or those of one container: its ID, the beginning of one, or its pod.
func reapply(ctx context.Context, n node.Node, of string) ([]repair, error) {
	all, err := n.Attachments(ctx)
	errs, repairs, found := []error{err}, []repair{}, of == ""
	for _, a := range all {
		_, name, _ := strings.Cut(a.Pod, "/")
		isIt := of == a.Pod || of == name || of == a.ContainerID || len(of) >= 4 && strings.HasPrefix(a.ContainerID, of)
		if a.Cached == nil || a.Netns == "" || a.Orphan != "" || of != "" && !isIt {
			continue
		}
		found = true
		list, err := node.ParseList(a.Cached.Config)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a.Cached.File, err))
			continue
		}
		for i := range list.Plugins {
			r := reapplyPlugin(ctx, n, a, node.Call{List: list, Entry: i})
			if r == nil {
				r = lostMasquerade(all, a, list.Plugins[i])
			}
			if r != nil {
				repairs = append(repairs, *r)
				if r.Error != "" {
					errs = append(errs, fmt.Errorf("%s: %s", a.Attachment, r.Error))
				}
			}
		}
	}
	if !found {
		errs = append(errs, fmt.Errorf("no container %q that lives is in %s", of, n.CacheDir))
	}
	return repairs, errors.Join(errs...)
}

// lostMasquerade says that the masquerade of the reference's bridge or ptp is gone, at which its CHECK does not look.
func lostMasquerade(all []*node.Attachment, a *node.Attachment, e node.Entry) *repair {
	isMain := e.Type == "bridge" || e.Type == "ptp"
	if !a.Reference || !isMain || string(e.Raw["ipMasq"]) != "true" {
		return nil
	}
	for _, other := range all { // the reference does not write down the interface
		if other.ContainerID == a.ContainerID && len(other.Held(cni.HeldMasquerade)) > 0 {
			return nil
		}
	}
	return &repair{Attachment: a.Attachment, Pod: a.Pod, Plugin: e.Type, Missing: "the masquerade",
		Error: "the reference's " + e.Type + " cannot make its masquerade again: restart the container"}
}

// mayBeDrift says whether the error of CHECK is about what is there. That of the reference's plugins has no code of its
// own.
func mayBeDrift(err error) bool {
	e, ok := errors.AsType[*cni.Error](err)
	return ok && e.Code >= cni.CodeExists
}

// reapplyPlugin repairs what one plugin made, nil where its CHECK finds nothing missing.
func reapplyPlugin(ctx context.Context, n node.Node, a *node.Attachment, c node.Call) *repair {
	c.Command, c.Container, c.PrevResult = "CHECK", a.Cached.Container(), a.Cached.RawResult
	_, err := n.Run(ctx, c)
	if err == nil {
		return nil
	}
	r := &repair{Attachment: a.Attachment, Pod: a.Pod, Plugin: c.List.Plugins[c.Entry].Type, Missing: err.Error()}
	if !mayBeDrift(err) {
		r.Error = "CHECK did not look: " + err.Error()
		return r
	}
	if err = n.Reapply(ctx, c, a); err == nil {
		_, err = n.Run(ctx, c)
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}
