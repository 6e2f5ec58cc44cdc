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
	_ "github.com/hawser-cni/plugins/pkg/skel/start" // settings of the Go runtime that make short calls faster
)

// Program is a plugin in the list of a program's plugins. Its functions build the Plugin when they are called.
type Program struct {
	Name string
	// Run serves one call and returns the exit status.
	Run       func(context.Context, Env) int
	InProcess func() bool // returns Plugin.InProcess
	// List runs the plugin's List for a configuration or, if conf is nil, for the places that do not depend on one.
	List func(ctx context.Context, conf []byte) ([]cni.Holding, error)
	// Restore runs the plugin's Restore for calls in the form of CHECK. It skips calls that cannot be decoded.
	Restore func(context.Context, []Env) map[string]error
	// CheckConfig returns the findings of --check-config. first is set for the first plugin of a list.
	CheckConfig func(conf []byte, first bool) []Finding
	Traits      func() Traits
}

// ProgramOf returns the list entry of a plugin. It takes the name and a function, so that only the plugin that is
// called is built: building the others would read their pages of the executable.
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

// list runs a plugin's List without a call.
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
	err = recoverPanic(func() error {
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

// restore runs a plugin's Restore without a call.
func restore(ctx context.Context, p Plugin[any], calls []Env) (missing map[string]error) {
	if p.Restore == nil {
		return nil
	}
	p.Parse = nil // Restore decodes what it needs
	var all []*Request
	for _, env := range calls {
		c := &call{plugin: p, env: env, vars: environ(env.Vars)}
		if req, err := c.decode("CHECK"); err == nil && req.PrevResult != nil {
			all = append(all, req)
		}
	}
	_ = recoverPanic(func() error { // a panic is ignored, because CHECK finds what is still missing
		missing = p.Restore(ctx, all)
		return nil
	})
	return missing
}

// Main runs the only plugin of a program and exits, with status 0 on success and 1 after an error.
func Main[C any](p Plugin[C]) {
	serve(func(ctx context.Context, env Env) int { return Run(ctx, p, env) }, nil)
}

// MainOf is Main for a program with several plugins. The base name of argv[0] selects the plugin (cni.IsPlugin). If
// none matches, a runtime gets an error object, and for other callers MainOf returns.
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
	err := cni.Errorf(cni.CodeConfig, "type: %q is not a plugin of this program, which has %s", name,
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

// Find returns the plugin with a name (cni.IsPlugin). If several plugins match, it returns the one with the longest
// name.
func Find(all []Program, name string) (found Program, ok bool) {
	for _, p := range all {
		if cni.IsPlugin(name, p.Name) && len(p.Name) > len(found.Name) {
			found, ok = p, true
		}
	}
	return found, ok
}

// InProcess returns the IPAM plugin r.IPAM if it can run in this process: file, which CNI_PATH provides for it, is the
// running program. If ok is false, the caller must execute the file. If Env.ReadOnly is set, the returned Program makes
// no changes and always succeeds.
func (r *Request) InProcess(file fs.FileInfo) (p Program, ok bool) {
	if r.isReadOnly {
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
	self, err := os.Stat("/proc/self/exe")
	return err == nil && os.SameFile(self, file)
}
