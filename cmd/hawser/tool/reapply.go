package tool

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
)

// repair is a drift of one plugin of an attachment. Error is the reason why it was not repaired.
type repair struct {
	cni.Attachment
	Pod     string `json:"pod,omitempty"`
	Plugin  string `json:"plugin"`
	Missing string `json:"missing"`
	Error   string `json:"error,omitempty"`
}

func reapplyCommand(s *session) *cobra.Command {
	return s.command("reapply [CONTAINER]", "Restore what CHECK finds missing for live containers",
		func(query string) error {
			ctx, done := signal.NotifyContext(s.ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
			defer done()
			p := repairer{node: s.Node}
			repairs, err := p.pass(ctx, query)
			return withDamaged(p.damaged, errors.Join(s.show(repairs, func(t table) {
				for _, r := range repairs {
					what := "restored"
					if r.Error != "" {
						what = "failed: " + r.Error
					}
					t.line("%s %s %s, %s: %s: %s", r.Network, nameOf(r.Pod, r.ContainerID), r.IfName, r.Plugin, what,
						firstLine(r.Missing))
				}
				if len(repairs) == 0 && err == nil {
					t.row("Nothing is missing.")
				}
			}), err))
		})
}

// firstLine returns the first line of an error of CHECK, and the number of further lines.
func firstLine(text string) string {
	first, rest, isMore := strings.Cut(text, "\n")
	if isMore {
		first += fmt.Sprintf(" (and %d more)", strings.Count(rest, "\n")+1)
	}
	return first
}

// repairer restores missing objects. It keeps the failed repairs for the next pass.
type repairer struct {
	node    *node.Node
	failed  map[string]failedRepair // of the last pass, by attachment and plugin
	damaged error                   // errors of single files in the last pass
}

// failedRepair is a repair after which objects are still missing.
type failedRepair struct {
	missing, reason string
	backoff         backoff
	due             time.Time // of the next attempt
}

// maxBackoff is the longest pause between attempts of a failed repair.
const maxBackoff = time.Hour

// blockedPrefix begins the reason of a repair that was not attempted.
const blockedPrefix = "left unchanged until the interface is complete: "

// job is a plugin of an attachment in one pass.
type job struct {
	call      node.Call
	repair    *repair // nil if nothing is missing
	isIntact  bool    // Check found nothing missing
	isDone    bool    // it was checked, and repaired if necessary
	isDelayed bool    // the next attempt is not yet due
}

func (j *job) String() string { return fmt.Sprint(j.call.Attachment.Attachment, j.call.Entry) }

// pass repairs all live attachments, or only the attachments of one container or pod. Host ports come first, because
// clients wait for them. pass does not return repairs that already failed for the same reason in the previous pass.
func (p *repairer) pass(ctx context.Context, query string) ([]repair, error) {
	jobs, err := p.jobs(ctx, query)
	errs, repairs := []error{err}, []repair{}
	p.restore(ctx, jobs)
	for _, isFirst := range []bool{true, false} { // first portmap, then all others and portmap jobs that waited
		for _, j := range jobs {
			if !j.isDone && (!isFirst || j.call.Is("portmap")) {
				p.repair(ctx, j, isFirst)
			}
		}
	}
	jobs = slices.DeleteFunc(jobs, func(j *job) bool { return j.repair == nil })
	failed := map[string]failedRepair{}
	for _, j := range jobs {
		isNew := true
		if current := p.verify(ctx, j); current.missing != "" {
			previous := p.failed[j.String()]
			isNew = current.missing != previous.missing || current.reason != previous.reason
			failed[j.String()] = current
			if j.repair.Error = current.reason; isNew {
				errs = append(errs, fmt.Errorf("%s: %s", j.repair.Attachment, j.repair.Error))
			}
		}
		if isNew {
			repairs = append(repairs, *j.repair)
		}
	}
	p.failed = failed
	return repairs, errors.Join(append(errs, context.Cause(ctx))...)
}

func (p *repairer) jobs(ctx context.Context, query string) (jobs []*job, err error) {
	all, damaged, err := p.node.Read(ctx)
	p.damaged = damaged
	errs, found := []error{err}, query == ""
	for _, a := range all {
		if !a.IsLive() || query != "" && !node.Matches(query, a.Pod, a.ContainerID) {
			continue
		}
		found = true
		calls, err := p.node.Checks(a)
		errs = append(errs, err)
		for _, c := range calls {
			jobs = append(jobs, &job{call: c})
		}
	}
	if !found {
		errs = append(errs, fmt.Errorf("no live container %q in %s", query, p.node.CacheDir))
	}
	return jobs, errors.Join(errs...)
}

func (j *job) addRepair(what string) {
	a := j.call.Attachment
	j.repair = &repair{Attachment: a.Attachment, Pod: a.Pod, Plugin: j.call.Plugin(), Missing: what}
}

// restore restores flushed rules of all jobs in one step for each plugin, host ports first. It ignores other drifts.
func (p *repairer) restore(ctx context.Context, jobs []*job) {
	for _, plugin := range []string{"portmap", "bridge", "ptp", "firewall"} {
		var calls []node.Call
		var restored []*job
		for _, j := range jobs {
			if j.call.Is(plugin) && !j.call.Attachment.Reference && j.call.Attachment.IsUnchanged() {
				calls, restored = append(calls, j.call), append(restored, j)
			}
		}
		if len(calls) == 0 || ctx.Err() != nil {
			continue
		}
		missing := p.node.Restore(ctx, plugin, calls)
		for _, j := range restored {
			if what := missing[j.call.Attachment.Mark()]; what != nil {
				j.addRepair(plugin + ": " + what.Error())
			}
		}
	}
}

// repair checks a job. If something is missing, it adds a repair to the job and performs it. If canWait is true, a
// repair that needs a complete interface of the container is left until the plugin that creates the interface was
// repaired.
func (p *repairer) repair(ctx context.Context, j *job, canWait bool) {
	if ctx.Err() != nil {
		return
	}
	err := p.node.Check(ctx, j.call)
	j.isDone = true
	if j.isIntact = err == nil; err == nil || ctx.Err() != nil || !j.call.Attachment.IsUnchanged() {
		return
	}
	drift := p.node.FirstDrift(ctx, j.call)
	if drift != nil && canWait {
		j.isDone = false
		return
	}
	j.addRepair(err.Error())
	previous := p.failed[j.String()]
	switch {
	case previous.missing == j.repair.Missing && time.Now().Before(previous.due) &&
		!strings.HasPrefix(previous.reason, blockedPrefix):
		j.repair.Error, j.isDelayed = previous.reason, true
	case drift != nil:
		j.repair.Error = blockedPrefix + drift.Error()
	case !node.IsDrift(err):
		j.repair.Error = "CHECK failed: " + err.Error()
	default:
		if err := p.node.Reapply(ctx, j.call); err != nil {
			j.repair.Error = err.Error()
		}
	}
}

// verify checks a repaired job again. It returns the failed repair, which is empty if nothing is missing any more.
func (p *repairer) verify(ctx context.Context, j *job) failedRepair {
	previous, current := p.failed[j.String()], failedRepair{missing: j.repair.Missing, reason: j.repair.Error}
	switch {
	case j.isIntact:
		return failedRepair{}
	case j.isDelayed:
		return previous
	case current.reason == "":
		err := p.node.Check(context.WithoutCancel(ctx), j.call)
		if err == nil || !j.call.Attachment.IsUnchanged() {
			return failedRepair{}
		}
		current = failedRepair{missing: err.Error(), reason: "it was restored, but CHECK still fails: " + err.Error()}
	}
	if current.missing == previous.missing {
		current.backoff = previous.backoff
	}
	current.due = time.Now().Add(current.backoff.next(maxBackoff))
	return current
}

// due returns the earliest time at which a failed repair is due; zero if none failed.
func (p *repairer) due() (first time.Time) {
	for _, f := range p.failed {
		if first.IsZero() || f.due.Before(first) {
			first = f.due
		}
	}
	return first
}
