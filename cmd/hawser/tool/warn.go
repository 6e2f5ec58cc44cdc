package tool

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/skel"
)

// warnNewer writes one line that names all replaced reference plugins that are newer than skel.Reference.
func (i *install) warnNewer(steps []step) {
	var names, versions []string
	for _, s := range steps {
		if !s.changed || s.kind != reference || !newer(s.version, skel.Reference) {
			continue
		}
		names = append(names, s.name)
		if !slices.Contains(versions, s.version) {
			versions = append(versions, s.version)
		}
	}
	if names != nil {
		fmt.Fprintf(i.out, "%s: warning: replaced plugins of the reference %s, newer than %s, which Hawser matches: "+
			"%s; --skip-newer leaves them\n", i.destDir, strings.Join(versions, ", "), skel.Reference,
			strings.Join(names, ", "))
	}
}

// links are the names of symbolic links in a directory to plugins that will be replaced. Hawser runs a plugin under its
// own name, but fails under other names.
type links struct {
	dir             string
	plugins, others []string
}

// findLinks searches the directories of PATH, the usual plugin directories, and the directories next to the
// installation for links to other programs' files that will be replaced. nerdctl's full archive has such links in bin.
func (i *install) findLinks(steps []step) (found []links) {
	destDir, err := filepath.EvalSymlinks(i.destDir)
	if err != nil {
		return nil
	}
	var targets []string
	for _, s := range steps {
		if s.result == "" && s.kind.isForeign() {
			targets = append(targets, filepath.Join(destDir, s.name))
		}
	}
	if targets == nil {
		return nil
	}
	dirs := append(filepath.SplitList(i.searchPath), "/opt/cni/bin", "/usr/libexec/cni", "/usr/lib/cni",
		"/usr/local/libexec/cni", "/usr/local/lib/cni", destDir, filepath.Join(destDir, "../bin"),
		filepath.Join(destDir, "../../bin"))
	for n, dir := range dirs {
		dirs[n], _ = filepath.EvalSymlinks(dir) // "" for a directory that does not exist
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		l := links{dir: dir}
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			_, isPlugin := skel.FindProgram(i.programs, e.Name())
			isStep := dir == destDir && slices.ContainsFunc(steps, func(s step) bool { return s.name == e.Name() })
			switch path := filepath.Join(dir, e.Name()); {
			case isStep || e.Type() != os.ModeSymlink || !slices.Contains(targets, targetOf(path)):
			case isPlugin:
				l.plugins = append(l.plugins, e.Name())
			default:
				l.others = append(l.others, e.Name())
			}
		}
		found = append(found, l)
	}
	return found
}

// targetOf returns the path to which a symbolic link points, with all links in the path's directory resolved.
func targetOf(link string) string {
	target, err := os.Readlink(link)
	if err != nil {
		return ""
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(link), target)
	}
	dir, _ := filepath.EvalSymlinks(filepath.Dir(target))
	return filepath.Join(dir, filepath.Base(target))
}

func (i *install) warnLinks(found []links) {
	warn := func(dir string, names []string, what string) {
		if names != nil {
			fmt.Fprintf(i.out, "%s: warning: links to replaced plugins %s: %s\n", dir, what, strings.Join(names, ", "))
		}
	}
	for _, l := range found {
		warn(l.dir, l.plugins, "run Hawser now")
		warn(l.dir, l.others, "fail now, because their names do not end in a plugin's")
	}
}

// requireMain returns an error if names include a main plugin and the directory has no main plugin of Hawser, because
// runtimes would otherwise silently run the former plugins.
func (i *install) requireMain(names []string) error {
	isWanted := false
	for _, p := range i.programs {
		if traits := p.Traits(); traits.IPAM || traits.Chained {
			continue
		}
		if f, err := i.inspect(p.Name); err == nil && f.kind == ours {
			return nil
		}
		isWanted = isWanted || slices.Contains(names, p.Name)
	}
	if !isWanted {
		return nil
	}
	return fmt.Errorf("%s: no main plugin of Hawser is in place, so that runtimes run the plugins that were left; "+
		"install without --keep and --skip-newer, or use --force", i.destDir)
}
