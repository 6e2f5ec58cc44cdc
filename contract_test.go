package plugins_test

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestContract finds each file and label that the pages about promises name.
func TestContract(t *testing.T) {
	for _, name := range []string{"docs/contract.md", "docs/reliability.md"} {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		specs := regexp.MustCompile("`([^`]+\\.go)`: `([^`]+)`").FindAllStringSubmatch(string(page), -1)
		if lines := strings.Count(string(page), ".go`:"); len(specs) != lines || lines == 0 {
			t.Errorf("%s: %d of %d labels can be read", name, len(specs), lines)
		}
		for _, s := range specs {
			source, err := os.ReadFile(s[1])
			if err != nil {
				t.Error(err)
				continue
			}
			label := regexp.MustCompile(`Label\([^)]*"` + regexp.QuoteMeta(s[2]) + `"`)
			if !label.Match(source) {
				t.Errorf("%s: %s: no label %q", name, s[1], s[2])
			}
		}
	}
}

// TestFuzzTargets finds each fuzz target in docs/reliability.md.
func TestFuzzTargets(t *testing.T) {
	page, err := os.ReadFile("docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	targets := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)
	for _, name := range tracked(t) {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range targets.FindAllStringSubmatch(string(source), -1) {
			if line := "| `" + path.Dir(name) + "` " + target[1] + " |"; !strings.Contains(string(page), line) {
				t.Errorf("docs/reliability.md: no line has %s", line)
			}
		}
	}
}
