package clusterlocal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// list returns the addresses in all records of all spaces in dataDir. It does not contact the API server.
func list(_ context.Context, req *skel.Request) (all []cni.Holding, err error) {
	p, err := parsePlace(req)
	if err != nil {
		return nil, err
	}
	spaces, err := os.ReadDir(p.dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	errs := []error{err}
	for _, space := range spaces {
		p.space = space.Name()
		kept, err := p.records().List()
		errs = append(errs, err)
		for _, k := range kept {
			for i, addr := range leaseAddrs(k.Record.names()) {
				h := cni.Holding{Attachment: k.Record.Attachment, Kind: cni.HeldAddress, Kept: k.Path, Since: k.Written,
					Value: addr.String() + " of " + p.space}
				if !slices.Contains(k.Record.Held, k.Record.names()[i]) {
					h.Value += ", requested"
				}
				all = append(all, h)
			}
		}
	}
	return all, errors.Join(errs...)
}

// listCommand implements "cluster-local list", which the tool hawser runs because it does not contain this plugin.
// The command prints what list returns for the configuration on standard input, or for no configuration.
func listCommand(env skel.Env) int {
	conf, err := io.ReadAll(env.Stdin)
	if len(conf) == 0 {
		conf = nil
	}
	var all []cni.Holding
	if err == nil {
		all, err = skel.ProgramOf("cluster-local", Plugin).List(context.Background(), conf)
	}
	if err = errors.Join(err, json.NewEncoder(env.Stdout).Encode(all)); err != nil {
		fmt.Fprintf(env.Stderr, "%v\n", err)
		return 1
	}
	return 0
}
