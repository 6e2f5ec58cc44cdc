// Package tool implements the command-line tool, which the program runs under any name that is not a plugin's. The
// commands are of three kinds:
//
//   - ls, why, explain, trace, doctor, check, metrics and diags report the state of a node and change nothing, except
//     that trace adds a table of its own while it runs.
//   - gc, reapply, watch and test call plugins: gc removes holdings of containers that no longer exist, reapply
//     restores flushed rules, watch repeats both, and test attaches containers of its own.
//   - install and uninstall change only the plugins' directory.
//
// The facts come from package node, so that all commands agree about an attachment. A command that cannot read a fact
// says so and makes no statement that depends on it. All output passes through a printer that makes control characters
// visible, because the output includes text from other programs.
//
// Each import also slows the start of every plugin in the program. Therefore, diags writes tar and metrics writes its
// text format without a library.
package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/skel/start"
)

// Main runs one of the plugins or, if none was called, the tool. It does not return.
func Main(all []skel.Program) {
	skel.MainOf(all)
	root, s := rootCommand(all, os.LookupEnv, os.Environ())
	root.SetArgs(os.Args[1:])
	root.SetIn(os.Stdin)
	root.SetOut(&printer{file: os.Stdout})
	root.SetErr(&printer{file: os.Stderr})
	// With a handler for SIGPIPE, a write to a pipe without a reader fails instead of ending the command halfway. The
	// programs that the tool runs do not inherit a handler; they would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	err, status := root.ExecuteContext(context.Background()), exitStatus(0)
	if errors.Is(s.out.err, unix.EPIPE) && err.Error() == s.out.err.Error() { // nothing but the write failed
		os.Exit(128 + int(unix.SIGPIPE)) // as a shell reports it; `hawser ls | head` is not an error
	}
	if err != nil && !errors.As(err, &status) {
		status = 1
	}
	if err != nil && err.Error() != "" {
		if s.json && !s.out.written {
			_ = s.show(map[string]string{"error": err.Error()}, nil) // standard error also has the message
		}
		text := err.Error()
		if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
			text += "\nthis command needs root"
		}
		fmt.Fprintln(root.ErrOrStderr(), "hawser: "+strings.ReplaceAll(text, "\n", "\nhawser: "))
	}
	os.Exit(int(status))
}

// session is one run of a command that reads the node. ctx is set when the command runs.
type session struct {
	*node.Node
	ctx  context.Context
	out  *output
	json bool
}

// output is standard output. It keeps the first write error.
type output struct {
	root    *cobra.Command
	lock    sync.Mutex
	written bool
	err     error
}

func (o *output) Write(p []byte) (n int, err error) {
	o.lock.Lock()
	defer o.lock.Unlock()
	n, err = o.root.OutOrStdout().Write(p)
	o.written, o.err = o.written || n > 0, cmp.Or(o.err, err)
	return n, err
}

// command returns a command. It takes no argument if usage has none, an optional argument if usage has one in brackets,
// and otherwise exactly one argument.
func (s *session) command(usage, short string, run func(arg string) error) *cobra.Command {
	args := cobra.ExactArgs(1)
	switch _, arg, ok := strings.Cut(usage, " "); {
	case !ok:
		args = cobra.NoArgs
	case arg[0] == '[':
		args = cobra.MaximumNArgs(1)
	}
	c := &cobra.Command{Use: usage, Short: short, Args: args, RunE: func(c *cobra.Command, args []string) error {
		s.ctx = c.Context()
		if err := run(strings.Join(args, "")); err != nil {
			return err
		}
		return s.out.err
	}}
	if !strings.Contains(usage, "FILE") && !strings.Contains(usage, "LIST") {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	return c
}

// permissions are the options that allow a command to remove or replace more. They are valid for one call only.
// Therefore, they are not taken from the environment of a shell or a pod, which outlives the call.
var permissions = []string{"yes", "force"}

// rootCommand returns the command line. An option that is not given is taken from the environment, for example --to
// from HAWSER_TO, unless it is one of permissions.
func rootCommand(all []skel.Program, env func(string) (string, bool), vars []string) (*cobra.Command, *session) {
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	root := &cobra.Command{
		Use: "hawser", Short: "CNI plugins in one program, and a tool to inspect, repair and install them",
		Version: skel.Version(), SilenceErrors: true, SilenceUsage: true,
	}
	s, dir := &session{Node: node.Default(all, vars), out: &output{root: root}}, ""
	s.IsReference, s.IsOurs = isReference, cachedIsOurs()
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		// Go's garbage collector runs less often in commands that read the node, because they read from many plugins
		// concurrently and keep the data until they end. Only these commands have the option --root. watch is excluded
		// because it runs permanently, and install, which has no --root, because its pod has little memory.
		if c.Flags().Lookup("root") != nil && c.Name() != "watch" {
			runtime.GOMAXPROCS(start.Processors)
			debug.SetGCPercent(400)
		}
		if err := setFromEnvironment(c.Flags(), env, c.ErrOrStderr()); err != nil || dir == "" {
			return err
		}
		if err := errors.Join(unix.Chroot(dir), os.Chdir("/")); err != nil {
			return fmt.Errorf("--root %q: %w", dir, err)
		}
		d := node.Default(all, vars) // reads files below the new root
		for name, value := range map[string]string{"conf": d.ConfDir, "path": d.Path, "cache": d.CacheDir} {
			if f := c.Flags().Lookup(name); !f.Changed {
				_ = f.Value.Set(value) // a string flag accepts all values
			}
		}
		return nil
	}
	for _, command := range []func(*session) *cobra.Command{
		lsCommand, whyCommand, explainCommand, traceCommand, doctorCommand, checkCommand, testCommand, reapplyCommand,
		gcCommand, watchCommand, diagsCommand, metricsCommand,
	} {
		c := command(s)
		f := c.Flags()
		f.StringVar(&s.ConfDir, "conf", s.ConfDir, "the `directory` of the network lists")
		f.StringVar(&s.Path, "path", s.Path, "the `directories` of the plugins, separated by colons")
		f.StringVar(&s.CacheDir, "cache", s.CacheDir, "libcni's cache `directory`, with records of attachments")
		f.StringVar(&dir, "root", "", "the `directory` at which a container has the node's root mounted (none)")
		f.BoolVar(&s.json, "json", false, "write JSON")
		root.AddCommand(c)
	}
	root.AddCommand(installCommand(all, names, env, s.out), uninstallCommand(all, s.out))
	refuseUnknown(root)
	return root, s
}

// refuseUnknown makes help fail for an unknown command, and completion fail for an unknown shell. Otherwise, cobra
// would show its help and succeed.
func refuseUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				_, _, err := root.Find(args)
				return err
			}
		case "completion":
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
}

func setFromEnvironment(flags *pflag.FlagSet, env func(string) (string, bool), warn io.Writer) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		name := "HAWSER_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := env(name)
		switch {
		case f.Name == "help", f.Name == "version", !ok, value == "", f.Changed:
		case slices.Contains(permissions, f.Name):
			fmt.Fprintf(warn, "hawser: %s: ignored; pass --%s\n", name, f.Name)
		default:
			if setErr := flags.Set(f.Name, value); setErr != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", name, setErr))
			}
		}
	})
	return err
}
