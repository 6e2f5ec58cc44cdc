package clusterlocal

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// importCommand implements "cluster-local import", for administrators who move a node from whereabouts. It creates
// the leases and records for addresses that whereabouts has allocated to containers of this node. It only reads
// whereabouts' own objects.
func importCommand(env skel.Env) int {
	run := importRun{env: env, sessions: map[place]*session{}}
	flags := flag.NewFlagSet("cluster-local import", flag.ContinueOnError)
	flags.SetOutput(env.Stderr)
	flags.StringVar(&run.kubeconfig, "kubeconfig", "", "API server and credentials (default: those of each network)")
	flags.StringVar(&run.node, "node", "", "the name of this node (default: that of each network)")
	flags.StringVar(&run.cache, "cache", "/var/lib/cni:/var/lib/cni/multus", "directories of libcni's cache")
	flags.BoolVar(&run.yes, "yes", false, "create the leases, after they are listed")
	if !parseFlags(flags, env) {
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), reclaimTime)
	defer cancel()
	err := run.run(ctx)
	outcome := "would be imported; use --yes to import them"
	if run.yes {
		outcome = "were imported"
	}
	fmt.Fprintf(env.Stdout, "%d addresses that whereabouts allocated to containers of this node %s; %d had been "+
		"imported before\n", run.imported, outcome, run.present)
	if err != nil {
		fmt.Fprintf(env.Stderr, "cluster-local: %v\n", err)
		return 1
	}
	return 0
}

type importRun struct {
	env                     skel.Env
	kubeconfig, node, cache string
	yes                     bool
	sessions                map[place]*session
	imported, present       int
}

// cachedAttachment is an entry of libcni's cache.
type cachedAttachment struct {
	Container string          `json:"containerId"`
	Network   string          `json:"networkName"`
	IfName    string          `json:"ifName"`
	Config    []byte          `json:"config"`
	Args      [][2]string     `json:"cniArgs"`
	Result    json.RawMessage `json:"result"`
}

func (i *importRun) run(ctx context.Context) error {
	var errs []error
	for _, dir := range filepath.SplitList(i.cache) {
		files, err := os.ReadDir(filepath.Join(dir, "results"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, f := range files {
			path := filepath.Join(dir, "results", f.Name())
			data, err := statefile.ReadRegular(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue // DEL has removed it since
			}
			var c cachedAttachment
			if err == nil {
				err = json.Unmarshal(data, &c)
			}
			if err == nil && c.Container != "" {
				err = i.importAttachment(ctx, c)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", path, err))
			}
		}
	}
	return errors.Join(errs...)
}

// importAttachment imports the addresses of one attachment if its IPAM plugin is whereabouts.
func (i *importRun) importAttachment(ctx context.Context, c cachedAttachment) error {
	var list struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(c.Config, &list); err != nil {
		return err
	}
	for _, conf := range append(list.Plugins, c.Config) {
		var head cni.Config
		if cni.Unmarshal(conf, &head) != nil || head.IPAM.Type != "whereabouts" {
			continue
		}
		p, err := parseWhereaboutsPlace(&skel.Request{Conf: conf})
		if err != nil {
			return err
		}
		var version struct{ CNIVersion string }
		_ = json.Unmarshal(c.Result, &version)
		result, err := cni.DecodeResult(c.Result, version.CNIVersion)
		if err != nil {
			return err
		}
		if p.node = cmp.Or(i.node, p.node); i.kubeconfig != "" {
			p.kubeconfig, p.keys.kubeconfig = i.kubeconfig, "--kubeconfig"
		}
		return i.importLeases(ctx, p, c, result)
	}
	return nil
}

// newSession returns the session for a place, with whereabouts' pools. All attachments of the place share it.
func (i *importRun) newSession(ctx context.Context, p place) (*session, error) {
	if !isSpace(p.space) {
		return nil, cni.Refuse(p.keys.space, p.space, "is not a valid name of a space")
	}
	if s := i.sessions[p]; s != nil {
		return s, nil
	}
	s := &session{place: p}
	err := s.connect(ctx)
	if err == nil {
		err = s.checkNode(ctx)
	}
	if err == nil {
		s.pools, err = s.cluster.pools(ctx)
	}
	if err == nil {
		i.sessions[p] = s
	}
	return s, err
}

// importLeases creates missing leases for the attachment's addresses, and the attachment's record if it is missing.
func (i *importRun) importLeases(ctx context.Context, p place, c cachedAttachment, result *cni.Result) error {
	s, err := i.newSession(ctx, p)
	if err != nil {
		return err
	}
	attachment := cni.Attachment{Network: c.Network, ContainerID: c.Container, IfName: c.IfName}
	a := &allocation{session: *s, cfg: &config{place: s.place}, req: &skel.Request{Attachment: attachment}}
	if a.record, _, err = s.records().Get(attachment.Hash()); err != nil {
		return err
	}
	for _, arg := range c.Args {
		if arg[0] == podUID {
			a.cfg.podUID = arg[1]
		}
	}
	var errs []error
	for _, ip := range result.IPs {
		addr := ip.Address.Addr().Unmap()
		name := nameOf(s.space, addr)
		e, isAllocated := findEntry(s.pools, s.space, addr)
		switch {
		case slices.Contains(a.record.Held, name):
			i.present++
			continue
		case !isAllocated:
			errs = append(errs, fmt.Errorf("%s of %s is not in a pool of whereabouts", addr, attachment))
			continue
		case e.Container != c.Container:
			errs = append(errs, fmt.Errorf("%s of %s is allocated to another container, pod %q", addr, attachment,
				e.Pod))
			continue
		}
		fmt.Fprintf(i.env.Stdout, "%s\tnode %q, %s, pod %q\n", name, s.node, attachment, e.Pod)
		a.cfg.pod = e.Pod
		if i.yes {
			if err := a.importLease(ctx, name); err != nil {
				errs = append(errs, fmt.Errorf("%s of %s: %w", addr, attachment, err))
				continue
			}
		}
		i.imported++
	}
	return errors.Join(errs...)
}

// importLease creates the lease and adds it to the record. It accepts a lease that an earlier run created.
func (a *allocation) importLease(ctx context.Context, name string) error {
	if a.record.Nonce == "" { // no record exists
		a.record = record{Attachment: a.req.Attachment, Nonce: rand.Text()}
		if err := a.session.createRecord(ctx, a.record); err != nil {
			return err
		}
	}
	addr, _ := addressOf(name)
	l, err := a.request(ctx, addr)
	if errors.Is(err, errTaken) {
		holder, _, err := a.session.cluster.getLease(ctx, name)
		if err != nil {
			return err
		}
		if holder.Nonce != l.Nonce {
			return errors.Join(fmt.Errorf("%w for %s", errTaken, holder), a.session.updateRecord(ctx, a.record))
		}
		a.record.addLease(holder)
	} else if err != nil {
		return err
	}
	return a.session.updateRecord(ctx, a.record)
}
