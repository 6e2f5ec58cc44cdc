// Command vulndb writes Go's vulnerability database into DIR, in the form that govulncheck reads, from a copy of the
// module golang.org/x/vulndb in MODULE. The database at vuln.go.dev has the same reports.
//
//	vulndb MODULE DIR
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// report has the fields of an OSV report that the indexes need.
type report struct {
	ID                  string
	Modified, Withdrawn time.Time
	Affected            []struct{ Package struct{ Name string } }
}

// vuln is an entry of a module in index/modules.json.
type vuln struct {
	ID       string    `json:"id"`
	Modified time.Time `json:"modified"`
}

// module is an affected module in index/modules.json.
type module struct {
	Path  string `json:"path"`
	Vulns []vuln `json:"vulns"`
}

func main() {
	err := errors.New("usage: vulndb MODULE DIR")
	if len(os.Args) == 3 {
		err = run(os.Args[1], os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulndb:", err)
		os.Exit(1)
	}
}

func run(source, dir string) error {
	files, err := filepath.Glob(filepath.Join(source, "data", "osv", "*.json"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s: no reports in data/osv", source)
	}
	modules := map[string]*module{}
	var newest time.Time
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var r report
		if err := json.Unmarshal(data, &r); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if r.Modified.After(newest) {
			newest = r.Modified
		}
		if !r.Withdrawn.IsZero() {
			continue
		}
		if err := write(filepath.Join(dir, "ID", r.ID+".json"), json.RawMessage(data)); err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, a := range r.Affected {
			name := a.Package.Name
			if modules[name] == nil {
				modules[name] = &module{Path: name}
			}
			if !seen[name] {
				seen[name] = true
				modules[name].Vulns = append(modules[name].Vulns, vuln{r.ID, r.Modified})
			}
		}
	}
	list := []*module{}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		list = append(list, modules[name])
	}
	if err := write(filepath.Join(dir, "index", "modules.json"), list); err != nil {
		return err
	}
	return write(filepath.Join(dir, "index", "db.json"), map[string]time.Time{"modified": newest})
}

func write(file string, v any) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}
