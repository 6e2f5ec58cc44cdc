package plugins_test

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/plugins"
)

func TestAll(t *testing.T) {
	var programs, listed []string
	mains, _ := filepath.Glob("*/*/main.go")
	for _, main := range mains {
		if filepath.Base(filepath.Dir(main)) == "cluster-local" { // a separate program, because it needs TLS
			continue
		}
		programs = append(programs, filepath.Base(filepath.Dir(main)))
	}
	for _, p := range plugins.All() {
		listed = append(listed, p.Name)
		var help bytes.Buffer
		p.Run(context.Background(), skel.Env{Args: []string{"--help"}, Stdout: &help, Stderr: &help})
		if !strings.HasPrefix(help.String(), p.Name+" ") {
			t.Errorf("%q in the list is: %.60s", p.Name, &help)
		}
	}
	if slices.Sort(programs); len(programs) == 0 || !slices.Equal(slices.Sorted(slices.Values(listed)), programs) {
		t.Errorf("the list has %q, the programs are %q", listed, programs)
	}
}
