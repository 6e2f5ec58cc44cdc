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

// toolName is the name of the file itself in the plugins' directory.
const toolName = "hawser"

// The ways in which the file has the name of a plugin.
const (
	hard     = "hard"
	symbolic = "symbolic"
	byCopy   = "copy"
)

// What is said of names that need nothing.
const (
	isThere = "is there"
	leftAll = "left, as all that is there"
)

type options struct {
	to, links         string
	only, skip        []string
	keep, force, loop bool
	skipNewer         bool
	searchPath        string // PATH
}

func installCommand(
	programs []skel.Program, names []string, env func(string) (string, bool), say *output,
) *cobra.Command {
	var o options
	c := &cobra.Command{
		Use: "install --to DIR", Short: "Put this file into DIR, and a link to it for each plugin", Args: onlyOptions,
		RunE: func(c *cobra.Command, _ []string) error {
			chosen, err := o.choose(names, env)
			if err != nil {
				return err
			}
			o.searchPath, _ = env("PATH")
			return cmp.Or(o.run(c.Context(), programs, chosen, say), say.err)
		},
	}
	f := c.Flags()
	f.StringVar(&o.to, "to", "", "the `directory` that runtimes look for plugins in, as /opt/cni/bin")
	f.StringSliceVar(&o.only, "only", nil, "these `plugins` alone, separated by commas")
	f.StringSliceVar(&o.skip, "skip", nil, "all but these `plugins`")
	f.StringVar(&o.links, "links", hard, "how the file has a plugin's name: hard, symbolic or copy")
	f.BoolVar(&o.keep, "keep", false, "leave every plugin's name that is there")
	f.BoolVar(&o.skipNewer, "skip-newer", false,
		"leave plugins of the reference newer than "+skel.Reference+", whose behavior is matched")
	f.BoolVar(&o.force, "force", false, "replace newer versions of Hawser and other programs' files too")
	f.BoolVar(&o.loop, "loop", false, "stay, and install again when something in DIR changes")
	return c
}

// onlyOptions is cobra.NoArgs, which calls a directory an unknown command.
func onlyOptions(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q: is no option; --to takes the directory", args[0])
	}
	return nil
}

// choose checks the options and returns the plugins that they name. The two variables are those of Rancher's image.
func (o *options) choose(names []string, env func(string) (string, bool)) ([]string, error) {
	if o.to == "" {
		return nil, errors.New("--to is missing: the directory that the runtime looks for plugins in, as /opt/cni/bin")
	}
	if !slices.Contains([]string{hard, symbolic, byCopy}, o.links) {
		return nil, fmt.Errorf("--links: %q is none of hard, symbolic and copy", o.links)
	}
	for option, list := range map[string][]string{"only": o.only, "skip": o.skip} {
		for _, name := range list {
			if !slices.Contains(names, name) {
				return nil, fmt.Errorf("--%s: %q is no plugin; there are %s", option, name, strings.Join(names, ", "))
			}
		}
	}
	// Its list may have plugins that are not ours.
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

func (o *options) run(ctx context.Context, programs []skel.Program, names []string, say io.Writer) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	last, files := map[string]string{}, &reader{program, map[identity]content{}}
	once := func(ctx context.Context) error {
		if err := os.MkdirAll(o.to, 0o755); err != nil {
			return err
		}
		files.begin()
		p := &place{dir: o.to, files: files}
		if err := p.open(ctx, programs, say); err != nil {
			return err
		}
		defer p.close()
		i := install{options: *o, place: p, programs: programs, program: program, say: say, last: last}
		return i.all(names)
	}
	if o.loop {
		concerns := func(name string) bool {
			_, isKnown := last[name]
			return isKnown || sameFile(filepath.Join(o.to, name), filepath.Join(o.to, toolName))
		}
		return looped{o.to, once, concerns}.run(ctx, say)
	}
	return once(ctx)
}

// install is one installation.
type install struct {
	options
	*place
	programs []skel.Program // all plugins of this file
	program  []byte
	say      io.Writer
	last     map[string]string // what was said of each name, in a loop
}

// step is what becomes of one name.
type step struct {
	file
	said    string // what was done, or why the name is left; empty before it is taken
	changed bool
}

// all decides about each name before it changes the first one.
func (i *install) all(names []string) error {
	var steps []step
	var errs []error
	for _, name := range i.withRecorded(names) {
		f, err := i.look(name)
		if !f.damaged && name != toolName && !slices.Contains(names, name) {
			continue
		}
		why := ""
		if err == nil {
			why, err = i.judge(f)
		}
		errs = append(errs, err)
		steps = append(steps, step{file: f, said: why})
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("nothing was installed:\n%w", err)
	}
	if err := i.note(steps); err != nil {
		return err
	}
	var failed error
	isMade, links := false, i.findLinks(steps)
	for n, s := range steps {
		if s.said != "" {
			continue
		}
		done, err := i.put(s.file)
		if err != nil {
			failed = fmt.Errorf("%s: %w", i.path(s.name), err)
			break
		}
		steps[n].said, steps[n].changed = done, done != isThere
		isMade = isMade || s.name == toolName
	}
	if failed == nil && isMade { // until then the other names may lead to the file before it
		failed = i.remember()
	}
	i.report(steps)
	i.warnNewer(steps)
	i.warnLinks(links)
	return cmp.Or(errors.Join(failed, i.sync()), i.requireMain(names))
}

// report says of each name what was done or why it is left; in a loop, after the first time, only what is new.
func (i *install) report(steps []step) {
	for _, s := range steps {
		last, known := i.last[s.name]
		isNew := s.changed || !known || s.said != last && s.said != isThere && s.said != leftAll
		if s.said != "" && isNew {
			fmt.Fprintf(i.say, "%s: %s\n", i.path(s.name), s.said)
		}
		i.last[s.name] = s.said
	}
}

// withRecorded returns the tool's name, these names, and the others that were taken once: they may be damaged.
func (i *install) withRecorded(names []string) []string {
	all := append([]string{toolName}, names...)
	for _, name := range slices.Sorted(maps.Keys(i.record)) {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// judge says why a name is left as it is; an error refuses the whole installation.
func (i *install) judge(f file) (why string, err error) {
	switch {
	case f.kind == unfit:
		return "", fmt.Errorf("%s: is no regular file (%s); move it away", i.path(f.name), f.info.Mode())
	case f.name == toolName && f.kind.isOthers() && !i.force:
		return "", fmt.Errorf("%s: is not ours, but its place is this file's; --force replaces it", i.path(toolName))
	case f.damaged:
		return "", nil
	case f.name != toolName && f.kind != absent && i.keep: // new names lead to our file: no older one
		return leftAll, nil
	case f.kind == reference && i.skipNewer && newer(f.version, skel.Reference):
		return fmt.Sprintf("left by --skip-newer: the reference plugin %s, newer than %s", f.version,
			skel.Reference), nil
	case i.force || f.kind == absent:
		return "", nil
	case f.kind == ours && newer(f.version, skel.Version()):
		return "", fmt.Errorf("%s: is the newer version %s (this is %s); --force replaces it",
			i.path(f.name), f.version, skel.Version())
	case f.kind == foreign:
		return "left: neither ours nor the reference's; --force replaces it", nil
	}
	return "", nil
}

// put gives the file a name, and says what it did. What was there stays whole until the new file takes its place.
func (i *install) put(f file) (string, error) {
	if i.isDone(f) {
		return isThere, nil
	}
	if f.name == toolName {
		return done(f), i.write(i.path(toolName), i.program, 0o755)
	}
	switch i.links {
	case symbolic:
		return done(f), i.swap(i.path(f.name), func(temporary string) error { return os.Symlink(toolName, temporary) })
	case hard:
		err := i.swap(i.path(f.name), func(temporary string) error { return os.Link(i.path(toolName), temporary) })
		if !cannotLink(err) {
			return done(f), err
		}
		fmt.Fprintf(i.say, "%s: no hard links here (%v): copies instead\n", i.to, err)
		i.links = byCopy
		return i.put(f)
	}
	return done(f), i.write(i.path(f.name), i.program, 0o755)
}

func done(f file) string {
	switch {
	case f.kind == absent:
		return "installed"
	case f.damaged:
		return "repaired: a file was copied onto it or onto another name of it (--links copy keeps names apart)"
	}
	return "installed, in the place of " + f.String()
}

// isDone says that a name is as put would make it.
func (i *install) isDone(f file) bool {
	target, _ := os.Stat(i.path(toolName))
	regular := f.kind == ours && f.info.Mode().IsRegular()
	switch {
	case f.name == toolName:
		return regular && isCurrent(f)
	case i.links == symbolic:
		return f.target == toolName
	case i.links == hard:
		return regular && os.SameFile(f.info, target)
	}
	return regular && !os.SameFile(f.info, target) && isCurrent(f)
}

// isCurrent reports whether write would make the same file.
func isCurrent(f file) bool { return f.isSelf && f.info.Mode().Perm() == 0o755 }

// sameFile reports whether two names are the same file.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, failed := os.Stat(b)
	return err == nil && failed == nil && os.SameFile(x, y)
}

func uninstallCommand(programs []skel.Program, say *output) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "uninstall --to DIR", Short: "Bring back what was in DIR before", Args: onlyOptions,
		RunE: func(c *cobra.Command, _ []string) error {
			if dir == "" {
				return errors.New("--to is missing: the directory of the installation")
			}
			return cmp.Or(uninstall(c.Context(), dir, programs, say), say.err)
		},
	}
	c.Flags().StringVar(&dir, "to", "", "the `directory` of the installation")
	return c
}

func uninstall(ctx context.Context, dir string, programs []skel.Program, say io.Writer) error {
	p := &place{dir: dir}
	err := p.open(ctx, programs, say)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(say, "%s: nothing is installed\n", dir)
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	if !exists(p.path(formerDir)) && !exists(p.path(partName)) {
		fmt.Fprintf(say, "%s: nothing is installed\n", dir)
		return nil
	}
	// Links lead to the file itself: it goes last.
	names := slices.Sorted(maps.Keys(p.record))
	names = append(slices.DeleteFunc(names, func(name string) bool { return name == toolName }), toolName)
	for _, name := range names {
		was, taken := p.record[name]
		if !taken {
			continue
		}
		done, err := p.giveBack(name, was)
		if err != nil {
			return err // it names the path
		}
		fmt.Fprintf(say, "%s: %s\n", p.path(name), done)
	}
	// What was not given back stays.
	maps.DeleteFunc(p.record, func(name string, was origin) bool { return !was.Kept || !exists(p.kept(name)) })
	if err := errors.Join(p.sync(), ignoreAbsent(os.Remove(p.path(partName)))); err != nil {
		return err
	}
	if len(p.record) > 0 {
		return p.save()
	}
	return errors.Join(os.RemoveAll(p.path(formerDir)), p.sync())
}

// giveBack brings back what had the name before, in one step.
func (p *place) giveBack(name string, was origin) (string, error) {
	f, err := p.look(name)
	former, _ := os.Lstat(p.kept(name))
	switch {
	case err != nil:
		return "", err
	case was.Kept && os.SameFile(f.info, former): // an installation was killed before it replaced the file
		return "as it was before", os.Remove(p.kept(name))
	case f.kind.isOthers() && was.Kept && former != nil:
		return "left: it is not ours; what was there before stays in " + p.kept(name), nil
	case f.kind.isOthers():
		return "left: it is not ours", nil
	case was.Kept && former != nil:
		return "as it was before", os.Rename(p.kept(name), p.path(name))
	case was.Kept:
		return "as it was before", nil // by an uninstallation that was not finished
	}
	return "removed", ignoreAbsent(os.Remove(p.path(name)))
}
