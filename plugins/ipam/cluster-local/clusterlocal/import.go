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

// importCommand serves a person who moves a node from whereabouts: it makes the leases and records of the addresses
// that whereabouts has lent to containers of this node. Whereabouts' own objects are only read.
func importCommand(env skel.Env) int {
	i := imported{env: env, sessions: map[place]*session{}}
	flags := flag.NewFlagSet("cluster-local import", flag.ContinueOnError)
	flags.SetOutput(env.Stderr)
	flags.StringVar(&i.kubeconfig, "kubeconfig", "", "API server and credentials (default as the networks have it)")
	flags.StringVar(&i.node, "node", "", "the name of this node (default as the networks have it)")
	flags.StringVar(&i.cache, "cache", "/var/lib/cni:/var/lib/cni/multus", "libcni's directories: what runs here")
	flags.BoolVar(&i.yes, "yes", false, "make the leases, after they are listed")
	if !parseFlags(flags, env) {
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), reclaimTime)
	defer cancel()
	err := i.run(ctx)
	done := "would be imported; --yes does it"
	if i.yes {
		done = "are imported"
	}
	fmt.Fprintf(env.Stdout, "%d addresses that whereabouts lends to containers of this node %s, %d were before\n",
		i.made, done, i.before)
	if err != nil {
		fmt.Fprintf(env.Stderr, "cluster-local: %v\n", err)
		return 1
	}
	return 0
}

// imported is one run of the command.
type imported struct {
	env                     skel.Env
	kubeconfig, node, cache string
	yes                     bool
	sessions                map[place]*session
	made, before            int
}

// cached is what libcni remembers of an attachment.
type cached struct {
	Container string          `json:"containerId"`
	Network   string          `json:"networkName"`
	IfName    string          `json:"ifName"`
	Config    []byte          `json:"config"`
	Args      [][2]string     `json:"cniArgs"`
	Result    json.RawMessage `json:"result"`
}

func (i *imported) run(ctx context.Context) error {
	var errs []error
	for _, dir := range filepath.SplitList(i.cache) {
		files, err := os.ReadDir(filepath.Join(dir, "results"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, f := range files {
			path := filepath.Join(dir, "results", f.Name())
			data, err := statefile.ReadRegular(path)
			var c cached
			if err == nil {
				err = json.Unmarshal(data, &c)
			}
			if err == nil && c.Container != "" {
				err = i.attachment(ctx, c)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("%s: %w", path, err))
			}
		}
	}
	return errors.Join(errs...)
}

// attachment imports the addresses of one attachment, if whereabouts has lent them.
func (i *imported) attachment(ctx context.Context, c cached) error {
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
		p.kubeconfig, p.node = cmp.Or(i.kubeconfig, p.kubeconfig), cmp.Or(i.node, p.node)
		return i.lease(ctx, p, c, result)
	}
	return nil
}

// at is the session of a place, with the pools that are there.
func (i *imported) at(ctx context.Context, p place) (*session, error) {
	if !isSpace(p.space) {
		return nil, cni.Refuse(p.keys.space, p.space, "is no name of a space")
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
		s.pools, err = s.api.pools(ctx)
	}
	if err == nil {
		i.sessions[p] = s
	}
	return s, err
}

// lease makes what is missing of an attachment's leases and record.
func (i *imported) lease(ctx context.Context, p place, c cached, result *cni.Result) error {
	s, err := i.at(ctx, p)
	if err != nil {
		return err
	}
	who := cni.Attachment{Network: c.Network, ContainerID: c.Container, IfName: c.IfName}
	a := &allocation{session: *s, cfg: &config{place: s.place}, req: &skel.Request{Attachment: who}}
	if a.record, _, err = s.records().Get(who.Hash()); err != nil {
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
		e, isLent := lent(s.pools, s.space, addr)
		switch {
		case slices.Contains(a.record.Held, name):
			i.before++
			continue
		case !isLent:
			errs = append(errs, fmt.Errorf("%s of %s is in no pool of whereabouts", addr, who))
			continue
		case e.Container != c.Container:
			errs = append(errs, fmt.Errorf("%s of %s is lent to another container, pod %q", addr, who, e.Pod))
			continue
		}
		fmt.Fprintf(i.env.Stdout, "%s\tnode %q, %s, pod %q\n", name, s.node, who, e.Pod)
		a.cfg.pod = e.Pod
		if i.yes {
			if err := a.adopt(ctx, name); err != nil {
				errs = append(errs, fmt.Errorf("%s of %s: %w", addr, who, err))
				continue
			}
		}
		i.made++
	}
	return errors.Join(errs...)
}

// adopt makes the lease of a name and writes it down. One that an earlier run has made is ours.
func (a *allocation) adopt(ctx context.Context, name string) error {
	if a.record.Nonce == "" { // there is none
		a.record = record{Attachment: a.req.Attachment, Nonce: rand.Text()}
		if err := a.begin(ctx, a.record); err != nil {
			return err
		}
	}
	addr, _ := addressOf(name)
	l, err := a.post(ctx, addr)
	if errors.Is(err, errTaken) {
		has, _, err := a.store.held(ctx, name)
		if err != nil {
			return err
		}
		if has.Nonce != l.Nonce {
			return errors.Join(fmt.Errorf("%w for %s", errTaken, has), a.keep(ctx, a.record))
		}
		a.record.hold(has)
	} else if err != nil {
		return err
	}
	return a.keep(ctx, a.record)
}
