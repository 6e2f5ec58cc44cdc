package clusterlocal

import (
	"context"
	"errors"
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
	orphanAge      = 10 * time.Minute // younger leases stay: their node may be joining, or was deleted by mistake
	maxReclaims    = 128              // leases that one ADD releases
	maxNodeLookups = 64               // nodes that one ADD looks up
)

// orphanedLeases returns the leases of at least orphanAge whose node is no longer in the cluster. An unreachable node
// keeps its leases indefinitely, because its containers may still use their addresses. At most limit nodes are looked
// up, beginning at a random one. skipped is the number of nodes that were not looked up.
func (c cluster) orphanedLeases(ctx context.Context, leases []lease, now time.Time, limit int) (orphaned []lease,
	skipped int, err error) {
	byNode := map[string][]lease{}
	for _, l := range leases {
		if !now.IsZero() && now.Sub(l.created) >= orphanAge {
			byNode[l.Node] = append(byNode[l.Node], l)
		}
	}
	holders := slices.Sorted(maps.Keys(byNode))
	if skipped = max(len(holders)-limit, 0); skipped > 0 {
		first := rand.N(len(holders))
		holders = slices.Concat(holders[first:], holders[:first])[:limit]
	}
	for _, h := range holders {
		exists, err := c.hasNode(ctx, h)
		if err != nil {
			return orphaned, skipped, err
		}
		if !exists {
			orphaned = append(orphaned, byNode[h]...)
		}
	}
	return orphaned, skipped, nil
}

// releaseOrphan deletes a lease of a deleted node and, with a guard, its entry in whereabouts' pools.
func (s *session) releaseOrphan(ctx context.Context, l lease) (err error) {
	if s.guard != "" {
		find := attachmentEntry(s.space, l.attachment(), leaseAddrs([]string{l.name}))
		s.pools, err = s.cluster.removeEntries(ctx, s.pools, find)
		if err != nil {
			return err
		}
	}
	return s.cluster.release(ctx, l)
}

// reclaimCommand implements "cluster-local reclaim", for administrators and CronJobs. It lists the leases of deleted
// nodes and, with --yes, releases them.
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

// parseFlags parses a command's options. It refuses other arguments, because options after them would be ignored.
func parseFlags(flags *flag.FlagSet, env skel.Env) bool {
	if flags.Parse(env.Args[1:]) != nil {
		return false
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(env.Stderr, "cluster-local %s: unexpected argument %q\n", env.Args[0], flags.Arg(0))
		return false
	}
	return true
}

const reclaimTime = 5 * time.Minute // limits the duration of reclaim and import

func reclaimAll(env skel.Env, p place, yes bool) error {
	if !isSpace(p.space) {
		return cni.Refuse("--space", p.space, "is not a valid name of a space")
	}
	ctx, cancel := context.WithTimeout(context.Background(), reclaimTime)
	defer cancel()
	client, err := kube.Open(ctx, p.kubeconfig)
	if err != nil {
		return err
	}
	c := cluster{client}
	all, now, err := c.list(ctx, p.space, "")
	if err != nil {
		return err
	}
	orphaned, _, err := c.orphanedLeases(ctx, all, now, len(all))
	if err != nil {
		return err
	}
	s := session{place: p, cluster: c}
	if yes {
		s.pools, err = c.pools(ctx)
		if s.guard = "whereabouts"; errors.Is(err, errNoPools) || kube.HasReason(err, "Forbidden") {
			s.guard, err = "", nil
		}
	}
	if err != nil {
		return err
	}
	for _, l := range orphaned {
		fmt.Fprintf(env.Stdout, "%s\t%s\n", l.name, l)
		if !yes {
			continue
		}
		if err := s.releaseOrphan(ctx, l); err != nil {
			return err
		}
	}
	outcome := "belong to deleted nodes; use --yes to release them"
	if yes {
		outcome = "belonged to deleted nodes and were released"
	}
	fmt.Fprintf(env.Stdout, "%d of %d leases %s\n", len(orphaned), len(all), outcome)
	return nil
}
