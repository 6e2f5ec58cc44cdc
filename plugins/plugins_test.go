package plugins_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/hawser-cni/plugins/plugins"
)

func TestAll(t *testing.T) {
	var programs, listed []string
	mains, _ := filepath.Glob("*/*/main.go")
	for _, main := range mains {
		programs = append(programs, filepath.Base(filepath.Dir(main)))
	}
	for _, p := range plugins.All() {
		listed = append(listed, p.Name)
	}
	if slices.Sort(programs); len(programs) == 0 || !slices.Equal(slices.Sorted(slices.Values(listed)), programs) {
		t.Errorf("the list has %q, the programs are %q", listed, programs)
	}
}
