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

// list names the addresses of all records in the directory. It asks no server.
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
			for i, addr := range addrsOf(k.Record.names()) {
				h := cni.Holding{Attachment: k.Record.Attachment, Kind: cni.HeldAddress, Kept: k.Path, Since: k.Written,
					Value: addr.String() + " of " + p.space}
				if !slices.Contains(k.Record.Held, k.Record.names()[i]) {
					h.Value += ", asked for"
				}
				all = append(all, h)
			}
		}
	}
	return all, errors.Join(errs...)
}

// listCommand serves hawser, which is another program: it prints what List returns for a configuration, or for none.
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
