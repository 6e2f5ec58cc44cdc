package clusterlocal

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins/ipam/cluster-local/kube"
)

const (
	deadAge         = 10 * time.Minute // of a lease of a node that may just be joining, or was deleted by mistake
	reclaimedAtOnce = 128
	nodesAtOnce     = 64 // that an ADD looks up
)

// dead are the leases of nodes that the cluster does not have any more. No time says that a node is gone: it may be cut
// off from the API server alone, and its containers answer for their addresses. It looks up at most so many nodes, from
// any of them on, and says how many are left.
func (k kubernetes) dead(ctx context.Context, all []lease, now time.Time, most int) (found []lease, left int,
	err error) {
	of := map[string][]lease{}
	for _, l := range all {
		if !now.IsZero() && now.Sub(l.made) >= deadAge {
			of[l.Node] = append(of[l.Node], l)
		}
	}
	holders := slices.Sorted(maps.Keys(of))
	if left = max(len(holders)-most, 0); left > 0 {
		at := rand.N(len(holders))
		holders = slices.Concat(holders[at:], holders[:at])[:most]
	}
	for _, h := range holders {
		isThere, err := k.hasNode(ctx, h)
		if err != nil {
			return found, left, err
		}
		if !isThere {
			found = append(found, of[h]...)
		}
	}
	return found, left, nil
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
	if !parseFlags(flags, env) {
		return 2
	}
	if err := reclaimAll(env, w.place(), *yes); err != nil {
		fmt.Fprintf(env.Stderr, "cluster-local: %v\n", err)
		return 1
	}
	return 0
}

// parseFlags reads a command's options, and refuses what is none: the options behind it would not be read.
func parseFlags(flags *flag.FlagSet, env skel.Env) bool {
	if flags.Parse(env.Args[1:]) != nil {
		return false
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(env.Stderr, "cluster-local %s: %q is no option\n", env.Args[0], flags.Arg(0))
		return false
	}
	return true
}

// reclaimTime is how long the command may take.
const reclaimTime = 5 * time.Minute

func reclaimAll(env skel.Env, p place, yes bool) error {
	if !isSpace(p.space) {
		return cni.Refuse("--space", p.space, "is no name of a space")
	}
	ctx, cancel := context.WithTimeout(context.Background(), reclaimTime)
	defer cancel()
	client, err := kube.Open(ctx, p.kubeconfig)
	if err != nil {
		return err
	}
	k := kubernetes{client}
	all, now, err := k.list(ctx, p.space, "")
	if err != nil {
		return err
	}
	found, _, err := k.dead(ctx, all, now, len(all))
	if err != nil {
		return err
	}
	for _, l := range found {
		fmt.Fprintf(env.Stdout, "%s\t%s\n", l.name, l)
		if !yes {
			continue
		}
		if err := k.release(ctx, l); err != nil {
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
