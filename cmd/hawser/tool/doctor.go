package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// finding is something that is wrong on the node; its ID has a section in docs/doctor.md.
type finding struct {
	ID       string `json:"id"`
	Severity string `json:"severity"` // broken or doubtful
	What     string `json:"what"`
	Advice   string `json:"advice"`
}

const (
	broken   = "error"   // containers have no network, or the next one will not
	doubtful = "warning" // it works, and will not for ever or for all
)

// exitStatus is an error that ends the program with a status, and says nothing.
type exitStatus int

func (e exitStatus) Error() string { return "" }

// facts are what the findings are made of.
type facts struct {
	node.Node
	ctx      context.Context
	lists    []node.List // of the directory
	all      []node.List // and those by which attachments were made
	damaged  []error     // of lists and records that cannot be read
	programs map[string]program
	attached []*node.Attachment
	links    []rtnl.Link
	routes   map[string][]rtnl.Route // by the link's name; not of containers' host ends
	problems []error                 // what could not be looked at
}

// program is the file of a plugin that a list names.
type program struct {
	file
	path     string
	versions []string
	err      error // it is missing, or cannot be run
}

func doctorCommand(n *node.Node, asJSON *bool) *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Say what is wrong on this node, and what to do", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f := gather(c.Context(), *n)
			found := f.findings()
			if err := printFindings(c.OutOrStdout(), found, *asJSON); err != nil {
				return err
			}
			if err := errors.Join(f.problems...); err != nil {
				return fmt.Errorf("not all could be looked at: %w%w", err, exitStatus(2))
			}
			if slices.ContainsFunc(found, func(f finding) bool { return f.Severity == broken }) {
				return exitStatus(1)
			}
			return nil
		},
	}
}

func printFindings(out io.Writer, found []finding, asJSON bool) error {
	if asJSON {
		return writeJSON(out, append([]finding{}, found...)) // [] for machines
	}
	for _, f := range found {
		what, advice := strings.ReplaceAll(plain(f.What), "\n\t", "; "), plain(f.Advice)
		fmt.Fprintf(out, "%s %s: %s\n    %s\n", f.Severity, f.ID, what, advice)
	}
	if len(found) == 0 {
		fmt.Fprintln(out, "nothing is wrong")
	}
	return nil
}

// findings are in the order of their severity, then in the order in which nodes meet them.
func (f *facts) findings() (all []finding) {
	for _, look := range []func(*facts) []finding{
		missingPlugins, badLists, unknownVersions, refusedLists, fullRanges, overlaps, lostLeases, forwardingOff,
		orphans,
	} {
		all = append(all, look(f)...)
	}
	slices.SortStableFunc(all, func(a, b finding) int { return strings.Compare(a.Severity, b.Severity) })
	return all
}

// gather looks at the node once.
func gather(ctx context.Context, n node.Node) *facts {
	f := &facts{Node: n, ctx: ctx, programs: map[string]program{}, routes: map[string][]rtnl.Route{}}
	var err error
	f.lists, err = n.Lists()
	f.note(err)
	cached, _ := n.Cached() // an error of it is one of Attachments
	f.all = slices.Clone(f.lists)
	for _, c := range cached {
		if list, err := node.ParseList(c.Config); err == nil {
			f.all = append(f.all, list)
		}
	}
	for _, list := range f.all {
		for _, plugin := range typesOf(list) {
			if _, known := f.programs[plugin]; !known {
				f.programs[plugin] = learnProgram(ctx, n, plugin)
			}
		}
	}
	f.attached, err = n.Attachments(ctx)
	f.note(err)
	f.note(f.gatherLinks())
	return f
}

// note keeps an error of a file that cannot be read as a finding, and any other one as what could not be looked at.
func (f *facts) note(err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			f.note(e)
		}
		return
	}
	isKnown := func(known error) bool { return known.Error() == err.Error() }
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil || slices.ContainsFunc(append(f.damaged, f.problems...), isKnown):
	case errors.As(err, &syntax), errors.As(err, &kind), errors.Is(err, io.ErrUnexpectedEOF):
		f.damaged = append(f.damaged, err)
	default:
		f.problems = append(f.problems, err)
	}
}

func (f *facts) gatherLinks() (err error) {
	host := rtnl.Host()
	defer host.Close()
	if f.links, err = host.Briefly(); err != nil {
		return err
	}
	for _, l := range f.links {
		if l.IsPairEnd() && strings.HasPrefix(l.Name, "veth") {
			continue // a container's
		}
		routes, err := host.Routes(l.Index, 0)
		if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return err
		}
		f.routes[l.Name] = routes
	}
	return nil
}

// typesOf are the plugins that a list names.
func typesOf(list node.List) (types []string) {
	for _, e := range list.Plugins {
		types = append(types, e.Type)
		if e.IPAM.Type != "" {
			types = append(types, e.IPAM.Type)
		}
	}
	return types
}

// learnProgram asks the plugin's file for the versions that it knows, as runtimes do.
func learnProgram(ctx context.Context, n node.Node, plugin string) (p program) {
	if p.path, p.err = n.Find(plugin); p.err != nil {
		return p
	}
	if p.file, p.err = inspect(p.path, plugin); p.err != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	asks := node.List{CNIVersion: cni.Newest, Plugins: []node.Entry{{Type: plugin}}}
	answer, err := n.Run(ctx, node.Call{Command: "VERSION", List: asks})
	var doc struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(answer)).Decode(&doc)
	}
	var refused *cni.Error
	switch {
	case errors.As(err, &refused): // of a plugin before 0.2.0
	case err != nil:
		p.err = fmt.Errorf("plugin %q does not say which versions it knows: %w", plugin, err)
	}
	p.versions = doc.SupportedVersions
	return p
}

// readSetting is a value below /proc/sys/net; empty where there is none.
func readSetting(path string) string {
	value, err := os.ReadFile("/proc/sys/net/" + path)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return strings.TrimSpace(string(value))
}
