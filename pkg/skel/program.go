package skel

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/policy"
	_ "github.com/hawser-cni/plugins/pkg/skel/start" // calls wait for others more than they compute
)

// Program is a Plugin of any configuration.
type Program struct {
	Name string
	// Run serves one call and returns the exit status.
	Run       func(context.Context, Env) int
	InProcess func() bool // as Plugin has it
	// List is the plugin's, for a configuration or, with nil, for the places that none chooses.
	List func(ctx context.Context, conf []byte) ([]cni.Holding, error)
	// Restore is the plugin's, for calls as those of CHECK. It leaves out those that cannot be read.
	Restore func(context.Context, []Env) map[string]error
	// CheckConfig returns what --check-config says of a configuration; first = of a list.
	CheckConfig func(conf []byte, first bool) []Finding
	Traits      func() Traits
}

// ProgramOf lists a plugin. The function plugin is called when the plugin is: the literals of the others are not built,
// and their pages of the executable are not touched. So the list has the name, too.
func ProgramOf[C any](name string, plugin func() Plugin[C]) Program {
	return program(name, func() Plugin[any] { return plugin().untyped() })
}

func program(name string, plugin func() Plugin[any]) Program {
	return Program{
		Name:      name,
		Run:       func(ctx context.Context, env Env) int { return run(ctx, plugin(), env) },
		InProcess: func() bool { p := plugin(); return p.IPAM && p.InProcess },
		List: func(ctx context.Context, conf []byte) ([]cni.Holding, error) {
			return list(ctx, plugin(), conf)
		},
		Restore: func(ctx context.Context, calls []Env) map[string]error { return restore(ctx, plugin(), calls) },
		CheckConfig: func(conf []byte, first bool) []Finding {
			c := call{plugin: plugin(), env: Env{Stderr: io.Discard}}
			found, _ := c.findings("", conf, first)
			return found
		},
		Traits: func() Traits { return traits(plugin()) },
	}
}

// list serves a List outside of a call.
func list(ctx context.Context, p Plugin[any], conf []byte) (all []cni.Holding, err error) {
	if p.List == nil {
		return nil, nil
	}
	req := &Request{Conf: conf, Stderr: io.Discard, plugin: p.Name}
	if conf == nil {
		req.Conf = []byte("{}")
	}
	var c cni.Config
	if err := req.Decode(&c); err != nil {
		return nil, err
	}
	req.Network, req.Version, req.IPAM = c.Name, c.CNIVersion, c.IPAM.Type
	defer req.close()
	err = catch(func() error {
		all, err = p.List(ctx, req)
		return err
	})
	for i := range all {
		all[i].Plugin = p.Name
	}
	if req.Network != "" {
		all = slices.DeleteFunc(all, func(h cni.Holding) bool { return !h.BelongsTo(req.Network) })
	}
	return all, err
}

// restore serves a Restore outside of a call.
func restore(ctx context.Context, p Plugin[any], calls []Env) (missing map[string]error) {
	if p.Restore == nil {
		return nil
	}
	p.Parse = nil // it reads what it needs
	var all []*Request
	for _, env := range calls {
		c := &call{plugin: p, env: env, vars: environ(env.Vars)}
		if req, err := c.decode("CHECK"); err == nil && req.PrevResult != nil {
			all = append(all, req)
		}
	}
	_ = catch(func() error { // CHECK finds what it did not make
		missing = p.Restore(ctx, all)
		return nil
	})
	return missing
}

// Main runs p in this process, which is no other plugin, and exits: with status 0 on success, 1 after an error.
func Main[C any](p Plugin[C]) {
	serve(func(ctx context.Context, env Env) int { return Run(ctx, p, env) }, nil)
}

// MainOf is Main for a program that contains all these plugins. The base name of argv[0] selects the plugin, by
// cni.IsPlugin. If no plugin matches, a runtime gets an error; for other callers MainOf returns.
func MainOf(all []Program) {
	name := filepath.Base(os.Args[0])
	if p, ok := Find(all, name); ok {
		serve(p.Run, all)
	}
	if os.Getenv("CNI_COMMAND") == "" || len(os.Args) > 1 {
		return
	}
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	err := cni.Errorf(cni.CodeConfig, "type: %q is no plugin of this file; there are %s", name,
		strings.Join(names, ", "))
	c := call{env: Env{Stdin: os.Stdin}}
	fmt.Println(string(err.Encode(c.askedVersion())))
	os.Exit(1)
}

func serve(run func(context.Context, Env) int, all []Program) {
	os.Exit(run(context.Background(), Env{
		Called: filepath.Base(os.Args[0]), Args: os.Args[1:], Vars: os.Environ(),
		Stdin: os.Stdin, Stdout: withoutSIGPIPE(os.Stdout), Stderr: withoutSIGPIPE(os.Stderr),
		Notify: notify, Programs: all, Failures: FailureDir, Policy: policy.File,
	}))
}

// Find returns the plugin of a name, by cni.IsPlugin. If several plugins match, it returns the one with the longest
// name.
func Find(all []Program, name string) (found Program, ok bool) {
	for _, p := range all {
		if cni.IsPlugin(name, p.Name) && len(p.Name) > len(found.Name) {
			found, ok = p, true
		}
	}
	return found, ok
}

// InProcess returns the IPAM plugin r.IPAM of this process, when file, which is what CNI_PATH has for it, is the
// running program (by device and inode). Without ok the file is to be executed. With Env.Look it is one that finds all
// as it should be.
func (r *Request) InProcess(file fs.FileInfo) (p Program, ok bool) {
	if r.looks {
		return Program{Run: func(context.Context, Env) int { return 0 }}, true
	}
	if p, ok = Find(r.programs, r.IPAM); !ok || !p.InProcess() {
		return p, false
	}
	run := p.Run
	p.Run = func(ctx context.Context, env Env) int {
		env.Failures, env.Policy = r.failures, "" // the calling plugin has checked the policy
		return run(ctx, env)
	}
	return p, isRunning(file)
}

// isRunning reports whether a file is the running program, by device and inode.
func isRunning(file fs.FileInfo) bool {
	own, err := os.Stat("/proc/self/exe")
	return err == nil && os.SameFile(own, file)
}
