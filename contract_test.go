package plugins_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestContract finds each spec that docs/contract.md names.
func TestContract(t *testing.T) {
	page, err := os.ReadFile("docs/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	specs := regexp.MustCompile("`([^`]+_test\\.go)`: \"([^\"]+)\"").FindAllStringSubmatch(string(page), -1)
	if lines := strings.Count(string(page), "_test.go`"); len(specs) != lines || lines == 0 {
		t.Errorf("docs/contract.md: %d of %d specs can be read", len(specs), lines)
	}
	for _, s := range specs {
		source, err := os.ReadFile(s[1])
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(source), `("`+s[2]+`"`) {
			t.Errorf("%s: no spec %q", s[1], s[2])
		}
	}
}
