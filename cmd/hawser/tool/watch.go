package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// watcher repeats repairs and, if wanted, garbage collection and metrics until it is stopped.
type watcher struct {
	session  *session
	repairer *repairer
	every    time.Duration // longest time between two passes
	gc       bool
	older    node.MinAge
	file     string    // for metrics; empty = none
	reported *sync.Map // the last error that was reported, by subject
}

func watchCommand(s *session) *cobra.Command {
	w := watcher{session: s, reported: &sync.Map{}, every: 5 * time.Minute}
	c := s.command("watch", "Keep running: restore flushed rules, remove garbage, write metrics",
		func(string) error {
			if w.every < time.Second {
				return errors.New("--every must be a second or more")
			}
			if err := checkMetricsFile(w.file); err != nil {
				return err
			}
			w.repairer = &repairer{node: s.Node}
			ctx, done := signal.NotifyContext(s.ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGPIPE)
			defer done()
			return w.run(ctx)
		})
	f := c.Flags()
	f.DurationVar(&w.every, "every", w.every, "the time between checks if no rules were flushed")
	f.BoolVar(&w.gc, "yes", false, "remove attachments of containers that no longer exist, as gc --yes does")
	addOlder(f, &w.older)
	f.StringVar(&w.file, "file", "", "a `path` in node_exporter's textfile directory, for metrics (none)")
	return c
}

// noNATWarning describes the consequence of a watch without its own table.
const noNATWarning = "connections do not survive a flush of all rules: this needs Linux 5.12, and only one hawser " +
	"watch of a node can do it (restart this one when the other one has ended)"

// reloadTime is the time that a program may need between flushing its rules and loading new ones. It is also the first
// pause of a backoff.
const reloadTime = 200 * time.Millisecond

// lostTime limits the pause after lost messages, which may have been about all rules.
const lostTime = 5 * time.Second

// backoff computes pauses before attempts. Each pause is twice as long as the previous one.
type backoff struct{ pause time.Duration }

// next returns the next pause, which is between reloadTime and limit.
func (b *backoff) next(limit time.Duration) time.Duration {
	b.pause = min(max(2*b.pause, reloadTime), limit)
	return b.pause
}

// schedule determines the time of the next pass. A pass follows a deletion after a pause. Many deletions need no pass:
// repairs delete rules, and so do plugins when containers end. Therefore, the pause grows as long as another deletion
// follows each pass, so that frequent deletions cause only a limited load. For deletions that no plugin makes, the
// limit of addDeletion keeps the pause short.
type schedule struct {
	every     time.Duration // longest time between two passes
	backoff   backoff       // between a deletion and the pass
	last, due time.Time     // the end of the last pass, and the next pass
	isPending bool          // a deletion since the last pass
}

// addDeletion schedules a pass after a deletion. limit is the longest pause before the pass.
func (s *schedule) addDeletion(limit time.Duration) {
	if !s.isPending {
		if time.Since(s.last) >= s.backoff.pause {
			s.backoff = backoff{}
		}
		s.backoff.next(s.every)
	}
	s.isPending, s.backoff.pause = true, min(s.backoff.pause, limit)
	s.limit(time.Now().Add(s.backoff.pause))
}

// endPass schedules the next pass after one that has just ended. retry is the time of the next attempt of a failed
// repair, or zero.
func (s *schedule) endPass(retry time.Time) {
	s.last, s.isPending = time.Now(), false
	s.due = s.last.Add(s.every)
	if !retry.IsZero() {
		s.limit(retry)
	}
}

// limit schedules the next pass for t at the latest.
func (s *schedule) limit(t time.Time) {
	if t.Before(s.due) {
		s.due = t
	}
}

// run watches until the context ends. It returns an error if the kernel's messages cannot be read.
func (w watcher) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	nat := nft.New()
	defer nat.Close()
	if err := keepNAT(nat); err != nil {
		w.reportError(ctx, "watch", fmt.Errorf("%s: %w", noNATWarning, err))
	}
	watchErr := make(chan error, 1)
	ready, flushed := make(chan struct{}, 1), make(chan struct{}, 1)
	deleted, lost := make(chan struct{}, 1), make(chan struct{}, 1)
	notify := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default: // the previous notification has not been received yet
		}
	}
	go func() {
		watchErr <- watchDeletions(ctx, func() { notify(ready) }, func(t nft.Table, chain string) {
			switch {
			case !isRelevant(t, chain):
			case t.Name == "": // messages about any number of rules were lost
				notify(lost)
			case chain == "":
				notify(flushed)
			default:
				notify(deleted)
			}
		})
	}()
	go w.repeat(ctx, func() { onFirewalldReload(ctx, func() { notify(flushed) }) })
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	background.Go(func() { w.repeat(ctx, func() { w.maintain(ctx) }) })
	s := schedule{every: w.every, due: time.Now().Add(w.every)}
	for timer := time.NewTimer(w.every); ; timer.Reset(time.Until(s.due)) {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watchErr:
			return err // nil if the context has ended
		case <-ready: // the kernel now reports all deletions, so the first pass can begin
			s.due = time.Now()
		case <-flushed:
			s.addDeletion(reloadTime)
		case <-deleted:
			s.addDeletion(w.every)
		case <-lost:
			s.addDeletion(lostTime)
		case <-timer.C:
			w.reapply(ctx)
			s.endPass(w.repairer.due())
		}
	}
}

// repeat calls do, and again after each w.every, until the context ends.
func (w watcher) repeat(ctx context.Context, do func()) {
	for do(); ; do() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(w.every):
		}
	}
}

const firewalldName = "org.fedoraproject.FirewallD1" // on the system bus

// onFirewalldReload calls do each time firewalld has reloaded or started, which loses the plugins' configuration, until
// the context ends. The deletion of firewalld's table is not a sufficient signal: it precedes the time at which
// firewalld accepts calls again, and does not occur with the backend iptables.
func onFirewalldReload(ctx context.Context, do func()) {
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return // without a bus there is no firewalld
	}
	defer bus.Close()
	signals := make(chan *dbus.Signal, 16)
	bus.Signal(signals) // the bus closes the channel with the connection
	err = errors.Join(
		bus.AddMatchSignalContext(ctx, dbus.WithMatchSender(firewalldName), dbus.WithMatchInterface(firewalldName),
			dbus.WithMatchMember("Reloaded")),
		bus.AddMatchSignalContext(ctx, dbus.WithMatchSender("org.freedesktop.DBus"),
			dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, firewalldName)))
	if err != nil {
		return
	}
	for s := range signals {
		if s.Name != "org.freedesktop.DBus.NameAcquired" { // it is about this connection
			do()
		}
	}
}

// isRelevant reports whether containers may lack rules after the deletion of a table or chain. Relevant are the tables
// of Hawser, the reference plugins and firewalld, and iptables chains that contain plugins' rules.
func isRelevant(t nft.Table, chain string) bool {
	switch t.Name {
	case nft.TableName, "cni_hostport", "cni_plugins_masquerade", "": // no name: messages were lost
		return true
	case "firewalld": // firewalld and plugins' DEL routinely delete single chains
		return chain == ""
	case "filter", "nat", "raw", "mangle":
		isBuiltIn := strings.ToUpper(chain) == chain && !strings.Contains(chain, "-") // such as FORWARD
		return chain == "" || isBuiltIn || strings.HasPrefix(chain, "CNI-")
	}
	return false
}

func (w watcher) reapply(ctx context.Context) {
	repairs, err := w.repairer.pass(ctx, "")
	for _, r := range repairs {
		if r.Error == "" {
			w.report("restored", fmt.Sprintf("%s: %s: %s", r.Attachment, r.Plugin, firstLine(r.Missing)), r)
		}
	}
	w.reportError(ctx, "damaged", w.repairer.damaged)
	w.reportError(ctx, "reapply", err)
}

func (w watcher) maintain(ctx context.Context) {
	if w.gc {
		found, err := collect(ctx, w.session.Node, w.older, true)
		if found != nil {
			for _, g := range found.Attachments {
				if g.Done {
					w.report("removed", fmt.Sprintf("%s: %s", g.Attachment, g.Why), g)
				}
			}
			w.reportError(ctx, "damaged", found.damaged)
		}
		w.reportError(ctx, "gc", err)
	}
	if w.file != "" {
		m, err := measure(ctx, w.session.Node, true, "")
		if ctx.Err() == nil { // otherwise m is incomplete
			err = errors.Join(err, m.write(w.file))
		}
		w.reportError(ctx, "metrics", err)
	}
}

// reportError reports an error, but not again while it stays the same.
func (w watcher) reportError(ctx context.Context, what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if old, _ := w.reported.Swap(what, text); err != nil && old != text && ctx.Err() == nil {
		w.report(what, err.Error(), map[string]string{"error": err.Error()})
	}
}

func (w watcher) report(what, text string, all any) {
	if w.session.json {
		_ = json.NewEncoder(w.session.out).Encode(map[string]any{what: all})
		return
	}
	fmt.Fprintf(w.session.out, "%s: %s\n", what, plain(text))
}

// keepNAT keeps the kernel translating the packets of translated connections while no other table has a rule for them.
// It creates a table that belongs to the socket of c (nft.AddTemporary), with a chain that registers NAT and a rule
// whose only effect is to register connection tracking.
func keepNAT(c *nft.Conn) error {
	return c.AddTemporary(nft.Layout{Table: nft.Table{Family: nft.INet, Name: "hawser_watch"}, Chains: []nft.Chain{{
		Name: "postrouting", Comment: "connections stay translated while others flush all rules",
		Hook: &nft.Hook{Type: "nat", Point: nft.Postrouting, Priority: 100}, Rules: []nft.Rule{{nft.CtEstablished()}},
	}}})
}

// watchDeletions calls ready, and then handle for each table, chain or rule that any program deletes, until ctx ends.
// The chain is empty for a table. If the kernel could not report deletions because too many came at once, handle gets a
// zero Table.
func watchDeletions(ctx context.Context, ready func(), handle func(t nft.Table, chain string)) error {
	subscribed := func() error {
		ready()
		return nil
	}
	return nft.Listen(ctx, unix.NFNLGRP_NFTABLES, subscribed, func(e nft.Event) (more bool) {
		text := func(kind uint16) string { return nlattr.GetString(e.Attrs, kind) }
		switch e.Type {
		case unix.NFT_MSG_DELTABLE:
			handle(nft.Table{Family: e.Family, Name: text(unix.NFTA_TABLE_NAME)}, "")
		case unix.NFT_MSG_DELCHAIN:
			handle(nft.Table{Family: e.Family, Name: text(unix.NFTA_CHAIN_TABLE)}, text(unix.NFTA_CHAIN_NAME))
		case unix.NFT_MSG_DELRULE:
			handle(nft.Table{Family: e.Family, Name: text(unix.NFTA_RULE_TABLE)}, text(unix.NFTA_RULE_CHAIN))
		case nft.EventsLost:
			handle(nft.Table{}, "")
		}
		return true
	})
}
