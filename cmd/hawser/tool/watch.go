package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// watcher is what hawser watch does, and how often.
type watcher struct {
	node  node.Node
	again *repairer
	every time.Duration
	gc    bool
	older time.Duration
	file  string // for metrics; empty = none
	say   io.Writer
}

func watchCommand(n *node.Node, _ *bool) *cobra.Command {
	w := watcher{every: 5 * time.Minute, older: 5 * time.Minute}
	c := &cobra.Command{
		Use: "watch", Short: "Stay, and make again what others flush; remove what no runtime knows; write metrics",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if w.every < time.Second || w.older < 0 {
				return errors.New("--every must be a second or more, and --older not negative")
			}
			if err := checkMetricsFile(w.file); err != nil {
				return err
			}
			w.node, w.again, w.say = *n, &repairer{Node: *n}, c.OutOrStdout()
			defer w.again.after.Wait()
			ctx, done := signal.NotifyContext(c.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer done()
			return w.run(ctx)
		},
	}
	f := c.Flags()
	f.DurationVar(&w.every, "every", w.every, "how often all is done, whether rules were flushed or not")
	f.BoolVar(&w.gc, "yes", false, "remove what no runtime knows any more, as gc --yes does")
	f.DurationVar(&w.older, "older", w.older, "leave alone what was written within this `duration`")
	f.StringVar(&w.file, "file", "", "a `path` in node_exporter's textfile directory, for metrics (none)")
	return c
}

// reloadTime is how long a program may take between the rules that it flushes and those that it loads.
const reloadTime = 200 * time.Millisecond

// run ends with the context, or when the kernel's messages cannot be read.
func (w watcher) run(ctx context.Context) error {
	flushed, failed := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		failed <- nft.Deletions(ctx, func(t nft.Table, chain string) {
			if concernsUs(t, chain) {
				select {
				case flushed <- struct{}{}:
				default: // it is to be looked at anyway
				}
			}
		})
	}()
	for ctx.Err() == nil {
		w.reapply(ctx)
		w.sometimes(ctx)
		pause, cancel := context.WithTimeout(ctx, w.every)
		for pause.Err() == nil {
			select {
			case <-flushed:
				reloaded, cancel := context.WithTimeout(ctx, reloadTime)
				<-reloaded.Done()
				cancel()
				w.reapply(ctx)
			case err := <-failed:
				cancel()
				return err // nil: the context has ended
			case <-pause.Done():
			}
		}
		cancel()
	}
	return nil
}

// concernsUs says whether containers may lack something when this is deleted: our tables, or chains of iptables in
// which rules of ours or of the reference are.
func concernsUs(t nft.Table, chain string) bool {
	switch t.Name {
	case nft.TableName, "": // without a name: something was lost
		return true
	case "filter", "nat", "raw", "mangle":
		return chain == "" || strings.HasPrefix(chain, "CNI-") || strings.ToUpper(chain) == chain &&
			!strings.Contains(chain, "-")
	}
	return false
}

func (w watcher) reapply(ctx context.Context) {
	repairs, err := w.again.pass(ctx, "")
	for _, r := range repairs {
		if r.Error == "" {
			fmt.Fprintf(w.say, "made again: %s: %s: %s\n", plain(r.Attachment.String()), r.Plugin, plain(r.Missing))
		}
	}
	w.complain("reapply", err)
}

func (w watcher) sometimes(ctx context.Context) {
	if w.gc {
		found, err := collect(ctx, w.node, w.older, true)
		if found != nil {
			for _, g := range found.Attachments {
				if g.Done {
					fmt.Fprintf(w.say, "removed: %s: %s\n", plain(g.Attachment.String()), plain(g.Why))
				}
			}
		}
		w.complain("gc", err)
	}
	if w.file != "" {
		m, err := measure(ctx, w.node, false, "")
		w.complain("metrics", errors.Join(err, m.write(w.file)))
	}
}

func (w watcher) complain(what string, err error) {
	if err != nil {
		fmt.Fprintf(w.say, "%s: %s\n", what, plain(err.Error()))
	}
}
