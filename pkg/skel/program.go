package skel

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/policy"
	_ "github.com/hawser-cni/plugins/pkg/skel/start" // settings of the Go runtime that make short calls faster
)

// Program is one plugin of a program that has several. Run and the methods build the Plugin when they are called,
// because building all plugins would read their pages of the executable at each start.
type Program struct {
	Name   string
	Run    func(context.Context, Env) int // serves one call and returns the exit status
	plugin func() Plugin[any]
}

// ProgramOf returns the Program of the plugin with this name.
func ProgramOf[C any](name string, plugin func() Plugin[C]) Program {
	return programOf(name, func() Plugin[any] { return plugin().Untyped() })
}

func programOf(name string, plugin func() Plugin[any]) Program { // not generic, so that it is compiled once
	return Program{name, func(ctx context.Context, env Env) int { return run(ctx, plugin(), env) }, plugin}
}

// Main runs the only plugin of a program and exits, with status 0 on success and 1 after an error.
func Main[C any](p Plugin[C]) {
	serve(func(ctx context.Context, env Env) int { return Run(ctx, p, env) }, nil)
}

// MainOf is Main for a program with several plugins. The base name of argv[0] selects the plugin (FindProgram). If no
// plugin matches, MainOf returns for a user's command line. For a runtime, it prints an error object and exits with
// status 1.
func MainOf(all []Program) {
	name := filepath.Base(os.Args[0])
	if p, ok := FindProgram(all, name); ok {
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
	fmt.Println(string(err.Encode(c.readVersion())))
	os.Exit(1)
}

// FindProgram returns the plugin that a name selects (cni.IsPlugin): of several, the one with the longest name.
func FindProgram(all []Program, name string) (found Program, ok bool) {
	for _, p := range all {
		if cni.IsPlugin(name, p.Name) && len(p.Name) > len(found.Name) {
			found, ok = p, true
		}
	}
	return found, ok
}

// serve calls run with the environment of this process and exits with the status that run returns. It does not return.
func serve(run func(context.Context, Env) int, all []Program) {
	os.Exit(run(context.Background(), Env{
		Called: filepath.Base(os.Args[0]), Args: os.Args[1:], Vars: os.Environ(),
		Stdin: os.Stdin, Stdout: withoutSIGPIPE(os.Stdout), Stderr: withoutSIGPIPE(os.Stderr),
		Notify: notify, Programs: all, Failures: FailureDir, Policy: policy.File,
	}))
}

// withoutSIGPIPE returns a duplicate of a standard stream. If the reader of a pipe has closed it, a write to descriptor
// 1 or 2 ends a Go process with SIGPIPE. A write to another descriptor returns an error, and ADD is rolled back.
func withoutSIGPIPE(f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return f
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// notify is Env.Notify of a real process. Signals that the caller ignores (for example nohup) remain ignored.
func notify(stop func(cause error)) {
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	go func() { stop(fmt.Errorf("%s signal received", <-signals)) }()
}

// List runs the plugin's List for a configuration or, if conf is nil, for the default directories.
func (p Program) List(ctx context.Context, conf []byte) (all []cni.Holding, err error) {
	plugin := p.plugin()
	if plugin.List == nil {
		return nil, nil
	}
	req := &Request{Conf: conf, Stderr: io.Discard, plugin: plugin.Name}
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
		all, err = plugin.List(ctx, req)
		return err
	})
	for i := range all {
		all[i].Plugin = plugin.Name
	}
	if req.Network != "" {
		all = slices.DeleteFunc(all, func(h cni.Holding) bool { return !h.BelongsTo(req.Network) })
	}
	return all, err
}

// Restore runs the plugin's Restore and returns its result. calls are environments of CHECK. Invalid calls, and calls
// without a prevResult, are skipped.
func (p Program) Restore(ctx context.Context, calls []Env) (missing map[string]error) {
	plugin := p.plugin()
	if plugin.Restore == nil {
		return nil
	}
	plugin.Parse = nil // Restore decodes what it needs
	var all []*Request
	for _, env := range calls {
		c := &call{plugin: plugin, env: env, vars: environ(env.Vars)}
		if req, err := c.decode("CHECK"); err == nil && req.PrevResult != nil {
			all = append(all, req)
		}
	}
	_ = recoverPanic(func() error { // a panic is ignored, because CHECK finds what is still missing
		missing = plugin.Restore(ctx, all)
		return nil
	})
	return missing
}

// CheckConfig returns the findings of --check-config for conf, an entry of a list of plugins. first is true for the
// first entry of the list.
func (p Program) CheckConfig(conf []byte, first bool) []Finding {
	c := call{plugin: p.plugin(), env: Env{Stderr: io.Discard}}
	return c.findings("", conf, first)
}

// Traits are the properties of a plugin that matter for a list of plugins.
type Traits struct {
	IPAM, Chained bool
	Capabilities  []string // capabilities whose data the plugin reads
}

// Traits returns the plugin's traits.
func (p Program) Traits() Traits {
	plugin := p.plugin()
	t := Traits{IPAM: plugin.IPAM, Chained: plugin.Chained}
	for _, k := range keysOf(reflect.TypeOf(plugin.Keys), "") {
		for _, inner := range k.inner {
			if k.name == "runtimeConfig" {
				t.Capabilities = append(t.Capabilities, inner.name)
			}
		}
	}
	return t
}

// InProcess returns a function that runs the IPAM plugin r.IPAM in this process. It returns nil if the caller must
// execute file, which CNI_PATH provides for the plugin. Only a plugin whose file is the running program can run
// in-process. If Env.ReadOnly is set, the function does nothing and succeeds.
func (r *Request) InProcess(file fs.FileInfo) (run func(context.Context, Env) int) {
	if r.env.ReadOnly {
		return func(context.Context, Env) int { return 0 }
	}
	p, ok := FindProgram(r.env.Programs, r.IPAM)
	if !ok {
		return nil
	}
	if plugin := p.plugin(); !plugin.IPAM || !plugin.InProcess || !isRunning(file) {
		return nil
	}
	return func(ctx context.Context, env Env) int {
		env.Failures, env.Policy = r.env.Failures, "" // the calling plugin has checked the policy
		return p.Run(ctx, env)
	}
}

// isRunning reports whether a file is the running program, by device and inode.
func isRunning(file fs.FileInfo) bool {
	self, err := os.Stat("/proc/self/exe")
	return err == nil && os.SameFile(self, file)
}
