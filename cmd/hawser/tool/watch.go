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

	"github.com/hawser-cni/plugins/pkg/nft"
)

// watcher is what hawser watch does, and how often.
type watcher struct {
	*session
	again *repairer
	every time.Duration
	gc    bool
	older time.Duration
	file  string    // for metrics; empty = none
	said  *sync.Map // what of each kind is wrong, as it was said
}

func watchCommand(s *session) *cobra.Command {
	w := watcher{session: s, said: &sync.Map{}, every: 5 * time.Minute, older: 5 * time.Minute}
	c := s.command("watch", "Stay, and make again what others flush; remove what no runtime knows; write metrics",
		func(string) error {
			if w.every < time.Second || w.older < 0 {
				return errors.New("--every must be a second or more, and --older not negative")
			}
			if err := checkMetricsFile(w.file); err != nil {
				return err
			}
			w.again = &repairer{Node: s.Node}
			ctx, done := signal.NotifyContext(s.ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGPIPE)
			defer done()
			return w.run(ctx)
		})
	f := c.Flags()
	f.DurationVar(&w.every, "every", w.every, "how often all is done, whether rules were flushed or not")
	f.BoolVar(&w.gc, "yes", false, "remove what no runtime knows any more, as gc --yes does")
	f.DurationVar(&w.older, "older", w.older, "leave alone what was written within this `duration`")
	f.StringVar(&w.file, "file", "", "a `path` in node_exporter's textfile directory, for metrics (none)")
	return c
}

// cannotHold says what is missing without a table of our own.
const cannotHold = "connections are not kept while others flush: Linux before 5.12 cannot, and one process of a node " +
	"has the table (start this one again when the other hawser watch has ended)"

// reloadTime is how long a program may take between the rules that it flushes and those that it loads.
const reloadTime = 200 * time.Millisecond

// lostTime is how long a repair may wait for which messages were lost: all rules may be gone.
const lostTime = 5 * time.Second

// run ends with the context, or when the kernel's messages cannot be read.
func (w watcher) run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	nat := nft.New()
	defer nat.Close()
	if err := holdNAT(nat); err != nil {
		w.complain(ctx, "watch", fmt.Errorf("%s: %w", cannotHold, err))
	}
	failed := make(chan error, 1)
	flushed, deleted, lost := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	tell := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default: // it is to be looked at anyway
		}
	}
	go func() {
		failed <- watchDeletions(ctx, func(t nft.Table, chain string) {
			switch {
			case !concernsUs(t, chain):
			case t.Name == "": // messages of any number of rules
				tell(lost)
			case chain == "":
				tell(flushed)
			default:
				tell(deleted)
			}
		})
	}()
	go w.each(ctx, func() { firewalldForgets(ctx, func() { tell(flushed) }) })
	var others sync.WaitGroup
	defer others.Wait()
	defer end()
	others.Go(func() { w.each(ctx, func() { w.sometimes(ctx) }) })
	due, p := time.NewTimer(0), pace{pause: reloadTime, most: w.every}
	hurry := func(most time.Duration) {
		if p.deleted(most) {
			due.Reset(p.pause)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err // nil: the context has ended
		case <-flushed:
			hurry(reloadTime)
		case <-deleted:
			hurry(w.every)
		case <-lost:
			hurry(lostTime)
		case <-due.C:
			w.reapply(ctx)
			due.Reset(p.repaired(len(w.again.failed) == 0))
		}
	}
}

// pace says when to repair. Repairs delete rules too, and so do plugins for containers that go. So the pause before the
// next one doubles each time that something is deleted within the last pause, and nobody can keep us busy. But it is
// short for what no plugin does.
type pace struct {
	pause, most time.Duration
	last        time.Time // the end of the last repair
	isDue       bool      // pause says when
	retry       time.Duration
}

// deleted sets pause to the time from now to the next repair, at most this, or says that it is to stay when it is.
func (p *pace) deleted(most time.Duration) (isNew bool) {
	if most == reloadTime { // what no plugin deletes may be repaired by now
		p.retry = 0
	}
	switch {
	case p.isDue && p.pause <= most:
		return false
	case p.isDue || time.Since(p.last) < p.pause:
		p.pause = min(2*p.pause, most, p.most)
	default:
		p.pause = reloadTime
	}
	if p.retry > 0 && p.retry <= p.pause { // that look is due sooner
		return false
	}
	p.isDue = true
	return true
}

// repaired is the time to the next look: ever longer where something could not be made again, which somebody may have
// flushed meanwhile.
func (p *pace) repaired(isWhole bool) time.Duration {
	p.last, p.isDue = time.Now(), false
	if p.retry = min(2*max(p.retry, reloadTime), p.most); isWhole {
		p.retry = 0
		return p.most
	}
	return p.retry
}

// each does something, and again each some minutes, until the context ends.
func (w watcher) each(ctx context.Context, do func()) {
	for do(); ; do() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(w.every):
		}
	}
}

// firewalldForgets calls each when firewalld has reloaded or started, and so forgot what plugins had told it, until the
// context ends. Its table goes then too, but not with its backend iptables, and sooner than it can be told again.
func firewalldForgets(ctx context.Context, each func()) {
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return // nobody runs
	}
	defer bus.Close()
	const name = "org.fedoraproject.FirewallD1"
	signals := make(chan *dbus.Signal, 16)
	bus.Signal(signals) // which closes it with the connection
	err = errors.Join(
		bus.AddMatchSignalContext(ctx, dbus.WithMatchSender(name), dbus.WithMatchInterface(name),
			dbus.WithMatchMember("Reloaded")),
		bus.AddMatchSignalContext(ctx, dbus.WithMatchSender("org.freedesktop.DBus"),
			dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, name)))
	if err != nil {
		return
	}
	for s := range signals {
		if s.Name != "org.freedesktop.DBus.NameAcquired" { // that is our own
			each()
		}
	}
}

// concernsUs says whether containers may lack something when this is deleted: our table, those of the reference and of
// firewalld, or chains of iptables in which rules of ours or of the reference are.
func concernsUs(t nft.Table, chain string) bool {
	switch t.Name {
	case nft.TableName, "cni_hostport", "cni_plugins_masquerade", "": // without a name: something was lost
		return true
	case "firewalld": // of its chains it, and a plugin's DEL, deletes one by one
		return chain == ""
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
			w.report("made again", fmt.Sprintf("%s: %s: %s", r.Attachment, r.Plugin, gist(r.Missing)), r)
		}
	}
	w.complain(ctx, "damaged", w.again.damaged)
	w.complain(ctx, "reapply", err)
}

func (w watcher) sometimes(ctx context.Context) {
	if w.gc {
		found, err := collect(ctx, w.Node, w.older, true)
		if found != nil {
			for _, g := range found.Attachments {
				if g.Done {
					w.report("removed", fmt.Sprintf("%s: %s", g.Attachment, g.Why), g)
				}
			}
			w.complain(ctx, "damaged", found.damaged)
		}
		w.complain(ctx, "gc", err)
	}
	if w.file != "" {
		m, err := measure(ctx, w.Node, true, "")
		w.complain(ctx, "metrics", errors.Join(err, m.write(w.file)))
	}
}

// complain says what is wrong, once while it stays the same.
func (w watcher) complain(ctx context.Context, what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if old, _ := w.said.Swap(what, text); err != nil && old != text && ctx.Err() == nil {
		w.report(what, err.Error(), map[string]string{"error": err.Error()})
	}
}

// report writes a line: text, or all of it as JSON.
func (w watcher) report(what, text string, all any) {
	if w.json {
		_ = json.NewEncoder(w.out).Encode(map[string]any{what: all})
		return
	}
	fmt.Fprintf(w.out, "%s: %s\n", what, plain(text))
}
