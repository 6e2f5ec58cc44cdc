package tool

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strings"
	"syscall"

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

func reapplyCommand(s *session) *cobra.Command {
	return s.command("reapply [CONTAINER]", "Make again what CHECK finds missing of containers that live",
		func(of string) error {
			ctx, done := signal.NotifyContext(s.ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
			defer done()
			p := repairer{Node: s.Node}
			repairs, err := p.pass(ctx, of)
			return noting(p.damaged, errors.Join(s.show(repairs, func(t table) {
				for _, r := range repairs {
					what := "made again"
					if r.Error != "" {
						what = "cannot: " + r.Error
					}
					t.line("%s %s %s, %s: %s: %s", r.Network, nameOf(r.Pod, r.ContainerID), r.IfName, r.Plugin, what,
						gist(r.Missing))
				}
				if len(repairs) == 0 && err == nil {
					t.row("Nothing is missing.")
				}
			}), err))
		})
}

// gist is the first line of what CHECK finds missing, and how many more there are.
func gist(text string) string {
	first, rest, isMore := strings.Cut(text, "\n")
	if isMore {
		first += fmt.Sprintf(" (and %d more)", strings.Count(rest, "\n")+1)
	}
	return first
}

// repairer makes again what is missing, pass by pass.
type repairer struct {
	node.Node
	failed  map[string]tried // in the pass before, by attachment and plugin
	damaged error            // of files that cannot be read, in the last pass
}

// tried is a repair that did not help.
type tried struct {
	missing, reason string
	passes          int // in which all was done that can be done, or could have been, and this was still missing
}

// isDue says whether it is to be tried once more: in ever fewer passes, since somebody may have flushed it again.
func (t tried) isDue() bool { return (t.passes+1)&t.passes == 0 }

// job is a plugin of an attachment.
type job struct {
	call node.Call
	*repair
	isWhole bool // Look finds nothing missing
	isDone  bool // it had its turn
}

func (j *job) String() string { return fmt.Sprint(j.call.Attachment.Attachment, j.call.Entry) }

// pass repairs all attachments that live, or those of one container: its ID, the beginning of one, or its pod. Host
// ports come first: they are what somebody waits for. Of what failed for the same reason in the pass before it says
// nothing.
func (p *repairer) pass(ctx context.Context, of string) ([]repair, error) {
	jobs, err := p.jobs(ctx, of)
	errs, repairs := []error{err}, []repair{}
	p.restore(ctx, jobs)
	for _, isFirst := range []bool{true, false} {
		for _, j := range jobs {
			if !j.isDone && (!isFirst || j.call.Is("portmap")) {
				p.repair(ctx, j, isFirst)
			}
		}
	}
	jobs = slices.DeleteFunc(jobs, func(j *job) bool { return j.repair == nil })
	failed := map[string]tried{}
	for _, j := range jobs {
		isNew := true
		if now := p.judge(ctx, j); now != (tried{}) {
			before := p.failed[j.String()]
			failed[j.String()], isNew = now, now.missing != before.missing || now.reason != before.reason
			if j.Error = now.reason; isNew {
				errs = append(errs, fmt.Errorf("%s: %s", j.Attachment, j.Error))
			}
		}
		if isNew {
			repairs = append(repairs, *j.repair)
		}
	}
	p.failed = failed
	return repairs, errors.Join(append(errs, context.Cause(ctx))...)
}

// jobs are what is to be looked at.
func (p *repairer) jobs(ctx context.Context, of string) (jobs []*job, err error) {
	all, damaged, err := p.Read(ctx)
	p.damaged = damaged
	errs, found := []error{err}, of == ""
	for _, a := range all {
		if !a.IsLive() || of != "" && !node.IsMeant(of, a.Pod, a.ContainerID) {
			continue
		}
		found = true
		calls, err := p.Looks(a)
		errs = append(errs, err)
		for _, c := range calls {
			jobs = append(jobs, &job{call: c})
		}
	}
	if !found {
		errs = append(errs, fmt.Errorf("no container %q that lives is in %s", of, p.CacheDir))
	}
	return jobs, errors.Join(errs...)
}

// misses gives the job a repair.
func (j *job) misses(what string) {
	a := j.call.Attachment
	j.repair = &repair{Attachment: a.Attachment, Pod: a.Pod, Plugin: j.call.Plugin(), Missing: what}
}

// restore makes again at once what a flush took of all, host ports first. What it cannot is left to Look and Reapply.
func (p *repairer) restore(ctx context.Context, jobs []*job) {
	for _, plugin := range []string{"portmap", "bridge", "ptp", "firewall"} {
		var calls []node.Call
		var of []*job
		for _, j := range jobs {
			if j.call.Is(plugin) && !j.call.Reference && j.call.IsSame() {
				calls, of = append(calls, j.call), append(of, j)
			}
		}
		if len(calls) == 0 || ctx.Err() != nil {
			continue
		}
		missing := p.Restore(ctx, plugin, calls)
		for _, j := range of {
			if what := missing[j.call.Mark()]; what != nil {
				j.misses(plugin + ": " + what.Error())
			}
		}
	}
}

// repair makes again what is missing of a job, which has a repair then. One for which the container's interface has to
// be whole waits for that plugin's turn if it canWait.
func (p *repairer) repair(ctx context.Context, j *job, canWait bool) {
	if ctx.Err() != nil {
		return
	}
	err := p.Look(ctx, j.call)
	j.isDone = true
	if j.isWhole = err == nil; err == nil || ctx.Err() != nil || !j.call.IsSame() {
		return
	}
	misleads := p.Misleads(ctx, j.call)
	if misleads != nil && canWait {
		j.isDone = false
		return
	}
	j.misses(err.Error())
	before := p.failed[j.String()]
	switch {
	case before.missing == j.Missing && !before.isDue():
		j.Error = before.reason
	case misleads != nil:
		j.Error = "left as it is until the interface is whole: " + misleads.Error()
	case !node.IsDrift(err):
		j.Error = "CHECK did not look: " + err.Error()
	default:
		if err := p.Reapply(ctx, j.call); err != nil {
			j.Error = err.Error()
		}
	}
}

// judge looks once more, and says why the repair did not help; nothing where it did.
func (p *repairer) judge(ctx context.Context, j *job) tried {
	now := tried{missing: j.Missing, reason: j.Error}
	before := p.failed[j.String()]
	if now.reason != "" && before.passes == 0 {
		return now
	}
	if j.isWhole {
		return tried{}
	}
	if now.reason == "" {
		err := p.Look(context.WithoutCancel(ctx), j.call)
		if err == nil || !j.call.IsSame() {
			return tried{}
		}
		now = tried{missing: err.Error(), reason: "it was made, and CHECK still says: " + err.Error()}
	}
	if now.passes = 1; now.missing == before.missing {
		now.passes += before.passes
	}
	return now
}
