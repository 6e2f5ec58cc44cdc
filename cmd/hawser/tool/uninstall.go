package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"
)

func uninstallCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "uninstall --to DIR", Short: "Bring back what was in DIR before", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if dir == "" {
				return errors.New("--to is missing: the directory of the installation")
			}
			return uninstall(c.Context(), dir, c.OutOrStdout())
		},
	}
	c.Flags().StringVar(&dir, "to", "", "the `directory` of the installation")
	return c
}

func uninstall(ctx context.Context, dir string, say io.Writer) error {
	p, err := open(ctx, dir)
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
