package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/pkg/skel"
)

// toolName is the name of this program in the plugins' directory.
const toolName = "hawser"

// The ways to install the program under a plugin's name.
const (
	hard     = "hard"
	symbolic = "symbolic"
	byCopy   = "copy"
)

// The results for names that are not changed.
const (
	upToDate   = "is up to date"
	leftByKeep = "left: --keep leaves existing files"
)

type options struct {
	destDir, linkMode string
	only, skip        []string
	keep, force, loop bool
	skipNewer         bool
	searchPath        string // value of PATH
}

func installCommand(
	programs []skel.Program, names []string, env func(string) (string, bool), out *output,
) *cobra.Command {
	var o options
	c := &cobra.Command{
		Use: "install --to DIR", Short: "Install this program in DIR, with a link for each plugin", Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			chosen, err := o.choose(names, env)
			if err != nil {
				return err
			}
			o.searchPath, _ = env("PATH")
			return cmp.Or(o.run(c.Context(), programs, chosen, out), out.err)
		},
	}
	f := c.Flags()
	f.StringVar(&o.destDir, "to", "", "the `directory` in which runtimes search for plugins, such as /opt/cni/bin")
	f.StringSliceVar(&o.only, "only", nil, "only these `plugins`, separated by commas")
	f.StringSliceVar(&o.skip, "skip", nil, "all plugins except these `plugins`")
	f.StringVar(&o.linkMode, "links", hard, "how the file gets a plugin's name: hard, symbolic or copy")
	f.BoolVar(&o.keep, "keep", false, "leave all existing files that have a plugin's name")
	f.BoolVar(&o.skipNewer, "skip-newer", false,
		"leave plugins of the reference newer than "+skel.Reference+", whose behavior is matched")
	f.BoolVar(&o.force, "force", false, "replace newer versions of Hawser and other programs' files too")
	f.BoolVar(&o.loop, "loop", false, "keep running, and install again after changes in DIR")
	return c
}

// noArguments replaces cobra.NoArgs, which reports a directory as an unknown command.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q; pass the directory with --to", args[0])
	}
	return nil
}

// choose checks the options and returns the selected plugins. The variables *_CNI_BINARIES are Rancher's.
func (o *options) choose(names []string, env func(string) (string, bool)) ([]string, error) {
	if o.destDir == "" {
		return nil, errors.New("--to is missing; pass the directory of the runtime's plugins, such as /opt/cni/bin")
	}
	if !slices.Contains([]string{hard, symbolic, byCopy}, o.linkMode) {
		return nil, fmt.Errorf("--links: %q is not one of hard, symbolic and copy", o.linkMode)
	}
	for option, list := range map[string][]string{"only": o.only, "skip": o.skip} {
		for _, name := range list {
			if !slices.Contains(names, name) {
				return nil, fmt.Errorf("--%s: %q is not a plugin of this program; it has %s", option, name,
					strings.Join(names, ", "))
			}
		}
	}
	// The variable may name plugins that Hawser does not have.
	others, _ := env("SKIP_CNI_BINARIES")
	skip := append(strings.Split(strings.ReplaceAll(others, " ", ""), ","), o.skip...)
	if value, ok := env("UPDATE_CNI_BINARIES"); ok && value != "" {
		update, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("UPDATE_CNI_BINARIES: %q is neither true nor false", value)
		}
		o.keep = o.keep || !update
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return len(o.only) > 0 && !slices.Contains(o.only, name) || slices.Contains(skip, name)
	}), nil
}

func (o *options) run(ctx context.Context, programs []skel.Program, names []string, out io.Writer) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	last, files := map[string]string{}, &reader{program, map[identity]content{}}
	installOnce := func(ctx context.Context) error {
		if err := os.MkdirAll(o.destDir, 0o755); err != nil {
			return err
		}
		files.dropUnsettled()
		p := &pluginDir{dir: o.destDir, files: files}
		if err := p.open(ctx, programs, out); err != nil {
			return err
		}
		defer p.close()
		i := install{options: *o, pluginDir: p, programs: programs, program: program, out: out, last: last}
		return i.all(names)
	}
	if o.loop {
		isRelevant := func(name string) bool {
			_, isKnown := last[name]
			return isKnown || sameFile(filepath.Join(o.destDir, name), filepath.Join(o.destDir, toolName))
		}
		return loop{o.destDir, installOnce, isRelevant}.run(ctx, out)
	}
	return installOnce(ctx)
}

// install is one installation.
type install struct {
	options
	*pluginDir
	programs []skel.Program // all plugins of this program
	program  []byte
	out      io.Writer
	last     map[string]string // the last reported result of each name, for --loop
}

// step is the installation of one name.
type step struct {
	file
	result  string // what was done, or why the name is left; empty = not yet done
	changed bool
}

// all decides about all names before it changes the first one.
func (i *install) all(names []string) error {
	var steps []step
	var errs []error
	for _, name := range i.addRecorded(names) {
		f, err := i.inspect(name)
		if !f.damaged && name != toolName && !slices.Contains(names, name) {
			continue
		}
		reason := ""
		if err == nil {
			reason, err = i.decide(f)
		}
		errs = append(errs, err)
		steps = append(steps, step{file: f, result: reason})
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("nothing was installed:\n%w", err)
	}
	if err := i.saveOriginals(steps); err != nil {
		return err
	}
	var firstErr error
	isToolNew, links := false, i.findLinks(steps)
	for n, s := range steps {
		if s.result != "" {
			continue
		}
		done, err := i.link(s.file)
		if err != nil {
			firstErr = fmt.Errorf("%s: %w", i.path(s.name), err)
			break
		}
		steps[n].result, steps[n].changed = done, done != upToDate
		isToolNew = isToolNew || s.name == toolName
	}
	if firstErr == nil && isToolNew { // until then, other names may be links to the recorded previous file
		firstErr = i.recordTool()
	}
	// This precedes the report, because a program that reads the report may change the directory immediately.
	err := cmp.Or(errors.Join(firstErr, i.sync()), i.requireMain(names))
	i.report(steps)
	i.warnNewer(steps)
	i.warnLinks(links)
	return err
}

// report prints the result of each name. In a loop, it only prints changes after the first time.
func (i *install) report(steps []step) {
	for _, s := range steps {
		last, known := i.last[s.name]
		isNew := s.changed || !known || s.result != last && s.result != upToDate && s.result != leftByKeep
		if s.result != "" && isNew {
			fmt.Fprintf(i.out, "%s: %s\n", i.path(s.name), s.result)
		}
		i.last[s.name] = s.result
	}
}

// addRecorded adds the tool's name and the other names in the record, because their files may be damaged.
func (i *install) addRecorded(names []string) []string {
	all := append([]string{toolName}, names...)
	for _, name := range slices.Sorted(maps.Keys(i.record)) {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// decide returns the reason to leave a name as it is, or "" to install it. An error prevents the whole installation.
func (i *install) decide(f file) (reason string, err error) {
	switch {
	case f.kind == irregular:
		return "", fmt.Errorf("%s: is not a regular file (%s); move it to another directory", i.path(f.name),
			f.info.Mode())
	case f.name == toolName && f.kind.isForeign() && !i.force:
		return "", fmt.Errorf("%s: exists and is not a Hawser program; use --force to replace it", i.path(toolName))
	case f.damaged:
		return "", nil
	case f.name != toolName && f.kind != absent && i.keep: // the tool must not be older than its links
		return leftByKeep, nil
	case f.kind == reference && i.skipNewer && newer(f.version, skel.Reference):
		return fmt.Sprintf("left by --skip-newer: the reference plugin %s, newer than %s", f.version,
			skel.Reference), nil
	case i.force || f.kind == absent:
		return "", nil
	case f.kind == ours && newer(f.version, skel.Version()):
		return "", fmt.Errorf("%s: is the newer version %s (this is %s); use --force to replace it",
			i.path(f.name), f.version, skel.Version())
	case f.kind == foreign:
		return "left: it is neither Hawser's nor the reference's; use --force to replace it", nil
	}
	return "", nil
}

// link installs the program under a name and returns the result. A former file stays complete until it is replaced.
func (i *install) link(f file) (string, error) {
	if i.isDone(f) {
		return upToDate, nil
	}
	var err error
	switch path := i.path(f.name); {
	case f.name == toolName || i.linkMode == byCopy:
		err = i.write(path, i.program, 0o755)
	case i.linkMode == symbolic:
		err = i.swap(path, func(temporary string) error { return os.Symlink(toolName, temporary) })
	default:
		err = i.swap(path, func(temporary string) error { return os.Link(i.path(toolName), temporary) })
		if cannotLink(err) {
			fmt.Fprintf(i.out, "%s: hard links are not possible (%v); making copies\n", i.destDir, err)
			i.linkMode = byCopy
			return i.link(f)
		}
	}
	return describeInstall(f), err
}

func describeInstall(f file) string {
	switch {
	case f.kind == absent:
		return "installed"
	case f.damaged:
		return "repaired: a file was copied onto it or onto another link to it (--links copy prevents this)"
	}
	return "installed, replacing " + f.String()
}

// isDone reports whether a name already has the file that link would create.
func (i *install) isDone(f file) bool {
	target, _ := os.Stat(i.path(toolName))
	regular := f.kind == ours && f.info.Mode().IsRegular()
	switch {
	case f.name == toolName:
		return regular && isCurrent(f)
	case i.linkMode == symbolic:
		return f.target == toolName
	case i.linkMode == hard:
		return regular && os.SameFile(f.info, target)
	}
	return regular && !os.SameFile(f.info, target) && isCurrent(f)
}

// isCurrent reports whether write would create an identical file.
func isCurrent(f file) bool { return f.isSelf && f.info.Mode().Perm() == 0o755 }

func sameFile(a, b string) bool {
	x, _ := os.Stat(a) // nil, which is not the same file, after an error
	y, _ := os.Stat(b)
	return os.SameFile(x, y)
}

func uninstallCommand(programs []skel.Program, out *output) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "uninstall --to DIR", Short: "Restore the files that install replaced in DIR", Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if dir == "" {
				return errors.New("--to is missing; pass the directory of the installation")
			}
			return cmp.Or(uninstall(c.Context(), dir, programs, out), out.err)
		},
	}
	c.Flags().StringVar(&dir, "to", "", "the `directory` of the installation")
	return c
}

func uninstall(ctx context.Context, dir string, programs []skel.Program, out io.Writer) error {
	p := &pluginDir{dir: dir}
	err := p.open(ctx, programs, out)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(out, "%s: nothing is installed\n", dir)
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	if !exists(p.path(formerDir)) && !exists(p.path(partName)) {
		fmt.Fprintf(out, "%s: nothing is installed\n", dir)
		return nil
	}
	// Links point to the tool's file, so it is removed last.
	names := slices.Sorted(maps.Keys(p.record))
	names = append(slices.DeleteFunc(names, func(name string) bool { return name == toolName }), toolName)
	for _, name := range names {
		former, isRecorded := p.record[name]
		if !isRecorded {
			continue
		}
		done, err := p.restore(name, former)
		if err != nil {
			return err // it has the path
		}
		fmt.Fprintf(out, "%s: %s\n", p.path(name), done)
	}
	// Names whose former file was not restored stay in the record.
	maps.DeleteFunc(p.record, func(name string, o original) bool { return !o.Kept || !exists(p.backup(name)) })
	if err := errors.Join(p.sync(), ignoreAbsent(os.Remove(p.path(partName)))); err != nil {
		return err
	}
	if len(p.record) > 0 {
		return p.save()
	}
	return errors.Join(os.RemoveAll(p.path(formerDir)), p.sync())
}

// restore replaces Hawser's file with the former file in one step, or removes it if there was no former file.
func (p *pluginDir) restore(name string, former original) (string, error) {
	f, err := p.inspect(name)
	backup, _ := os.Lstat(p.backup(name))
	switch {
	case err != nil:
		return "", err
	case former.Kept && os.SameFile(f.info, backup): // an installation was killed before it replaced the file
		return "as it was before", os.Remove(p.backup(name))
	case f.kind.isForeign() && former.Kept && backup != nil:
		return "left: it is not Hawser's; the former file stays in " + p.backup(name), nil
	case f.kind.isForeign():
		return "left: it is not Hawser's", nil
	case former.Kept && backup != nil:
		return "as it was before", os.Rename(p.backup(name), p.path(name))
	case former.Kept:
		return "as it was before", nil // restored by an uninstallation that was interrupted
	}
	return "removed", ignoreAbsent(os.Remove(p.path(name)))
}
