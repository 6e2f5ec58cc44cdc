package clusterlocal

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/kube"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	deadAge         = 10 * time.Minute // of a lease of a node that may just be joining, or was deleted by mistake
	reclaimedAtOnce = 128
	nodesAtOnce     = 64 // that a call looks up, itself among them
)

// dead are the leases of nodes that the cluster does not have any more. No time says that a node is gone: it may be cut
// off from the API server alone, and its containers answer for their addresses. Our own node is there in any case.
func (k kubernetes) dead(ctx context.Context, all []lease, self string, now time.Time) (found []lease, err error) {
	has := map[string]bool{self: true}
	for _, l := range all {
		if now.IsZero() || now.Sub(l.made) < deadAge {
			continue
		}
		isThere, isKnown := has[l.Node]
		if !isKnown {
			if len(has) == nodesAtOnce {
				continue
			}
			if isThere, err = k.hasNode(ctx, l.Node); err != nil {
				return found, err
			}
			has[l.Node] = isThere
		}
		if !isThere {
			found = append(found, l)
		}
	}
	return found, nil
}

// reclaimCommand serves a person, or a CronJob: it lists the leases of nodes that are gone, and removes them.
func reclaimCommand(env skel.Env) int {
	var w wirePlace
	flags := flag.NewFlagSet("cluster-local reclaim", flag.ContinueOnError)
	flags.SetOutput(env.Stderr)
	flags.StringVar(&w.Kubeconfig, "kubeconfig", "",
		"API server and credentials (default /etc/kubernetes/kubelet.conf)")
	flags.StringVar(&w.Space, "space", "", "the space (default default)")
	yes := flags.Bool("yes", false, "release the leases, after they are listed")
	if err := flags.Parse(env.Args[1:]); err != nil {
		return 2
	}
	if err := reclaimAll(env, w.place(), *yes); err != nil {
		fmt.Fprintf(env.Stderr, "cluster-local: %v\n", err)
		return 1
	}
	return 0
}

// reclaimTime is how long the command may take.
const reclaimTime = 5 * time.Minute

func reclaimAll(env skel.Env, p place, yes bool) error {
	if !spaceName.MatchString(p.space) {
		return cni.Refuse("--space", p.space, "is no name of a space")
	}
	ctx, cancel := context.WithTimeout(context.Background(), reclaimTime)
	defer cancel()
	client, err := kube.Open(ctx, p.kubeconfig)
	if err != nil {
		return err
	}
	k := kubernetes{client}
	all, now, err := k.list(ctx, p.space, "", true)
	if err != nil {
		return err
	}
	found, err := k.dead(ctx, all, "", now)
	if err != nil {
		return err
	}
	for _, l := range found {
		fmt.Fprintf(env.Stdout, "%s\t%s\n", l.name, l)
		if !yes {
			continue
		}
		if err := k.release(ctx, l.name, l.Nonce); err != nil {
			return err
		}
	}
	done := "are of nodes that are gone; --yes releases them"
	if yes {
		done = "were of nodes that are gone, and are released"
	}
	fmt.Fprintf(env.Stdout, "%d of %d leases %s\n", len(found), len(all), done)
	return nil
}
