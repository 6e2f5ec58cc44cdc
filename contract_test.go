package plugins_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ref is a reference of a page to the specs with a label in a file.
type ref struct{ file, label string }

var refs = regexp.MustCompile("((?:`[^`]+\\.go`, )*`[^`]+\\.go`): `([^`]+)`")

// references returns the references in text, which names one label for one or more files.
func references(text string) (all []ref) {
	for _, m := range refs.FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1) {
		for file := range strings.SplitSeq(m[1], ", ") {
			all = append(all, ref{strings.Trim(file, "`"), m[2]})
		}
	}
	return all
}

// TestContract finds each file and label that the pages about promises name.
func TestContract(t *testing.T) {
	for _, name := range []string{"docs/contract.md", "docs/reliability.md", "SECURITY.md"} {
		page := read(t, name)
		all := references(page)
		if files := strings.Count(page, ".go`:") + strings.Count(page, ".go`,"); len(all) != files || files == 0 {
			t.Errorf("%s: the labels of %d of %d files can be read", name, len(all), files)
		}
		for _, r := range all {
			if _, found := labels(t, r.file)[r.label]; !found {
				t.Errorf("%s: %s: no label %q", name, r.file, r.label)
			}
		}
	}
}

// TestContractQuick verifies that make test runs at least one spec of each promise. Only the suites with a module of
// their own are exempt: they need a runtime, an API server or a release, and have their own make targets. With -v it
// lists the specs.
func TestContractQuick(t *testing.T) {
	left := leftOut(t)
	for _, item := range strings.Split(read(t, "docs/contract.md"), "\n- ")[1:] {
		promise := strings.Join(strings.Fields(item), " ")
		kept, exempt := []string(nil), true
		for _, r := range references(item) {
			own := hasOwnModule(r.file)
			exempt = exempt && own
			if !own && !slices.Contains(left, path.Dir(r.file)) && labels(t, r.file)[r.label] {
				kept = append(kept, r.file+" "+r.label)
			}
		}
		if len(references(item)) == 0 {
			t.Errorf("docs/contract.md: no spec is named for the promise %q", promise)
		} else if len(kept) == 0 && !exempt {
			t.Errorf("docs/contract.md: no spec in make test keeps the promise %q", promise)
		}
		t.Logf("%s: %s", promise, strings.Join(kept, ", "))
	}
}

// TestContractReader verifies that TestContractQuick finds a promise whose specs are all slow.
func TestContractReader(t *testing.T) {
	file := path.Join(t.TempDir(), "a_test.go")
	source := `package a
		var _ = Describe("a", Label("one", "two"), func() {
			It("b", Label("slow", "three"), func() {})
			It("c", Label("four"), func() {})
		})
		var _ = DescribeTable("d", Label("five"), func(int) {}, Entry("e", Label("slow"), 1))
		var _ = DescribeTable("f", Label("six"), func(int) {}, entries)`
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	got := labels(t, file)
	want := map[string]bool{"one": true, "two": true, "three": false, "four": true, "five": false, "six": true}
	for label, want := range want {
		if quick, found := got[label]; !found || quick != want {
			t.Errorf("%s: %v %v, want true %v", label, found, quick, want)
		}
	}
}

// hasOwnModule reports whether a file belongs to a module other than the root's and test/.
func hasOwnModule(file string) bool {
	for dir := path.Dir(file); dir != "." && dir != "test"; dir = path.Dir(dir) {
		if _, err := os.Stat(dir + "/go.mod"); err == nil {
			return true
		}
	}
	return false
}

// leftOut returns the directories that scripts/test.sh leaves to make test-all.
func leftOut(t *testing.T) []string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^slow=\(test/\{(.*)\}\)`).FindStringSubmatch(read(t, "scripts/test.sh"))
	if m == nil {
		t.Fatal("scripts/test.sh has no line slow=(test/{...})")
	}
	dirs := strings.Split(m[1], ",")
	for i, dir := range dirs {
		dirs[i] = "test/" + dir
		if _, err := os.Stat(dirs[i]); err != nil {
			t.Error("scripts/test.sh:", err)
		}
	}
	return dirs
}

var parsed = map[string]map[string]bool{}

// labels returns the labels of the specs in a file, and for each whether a spec has it that is not labeled "slow".
func labels(t *testing.T, file string) map[string]bool {
	t.Helper()
	if found, ok := parsed[file]; ok {
		return found
	}
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return nil
	}
	found := map[string]bool{}
	collect(tree, nil, found)
	parsed[file] = found
	return found
}

var nodes = []string{"Describe", "DescribeTable", "DescribeTableSubtree", "Context", "When", "It", "Entry"}

// collect adds the labels below node and reports whether it has specs. outer has the labels of the enclosing
// containers.
func collect(node ast.Node, outer []string, found map[string]bool) (specs bool) {
	ast.Inspect(node, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || n == node {
			return true
		}
		if c, ok := node.(*ast.CallExpr); ok && slices.Contains(c.Args, ast.Expr(call)) && own(call) != nil {
			return false // already in outer
		}
		if name, ok := call.Fun.(*ast.Ident); !ok || !slices.Contains(nodes, name.Name) {
			add(own(call), found) // of a Label that is the value of a variable
			return true
		}
		all := slices.Clone(outer)
		for _, arg := range call.Args {
			if c, ok := arg.(*ast.CallExpr); ok {
				all = append(all, own(c)...)
			}
		}
		specs = true
		if !collect(call, all, found) {
			add(all, found)
		}
		return false
	})
	return specs
}

// own returns the arguments of a call of Label.
func own(call *ast.CallExpr) (texts []string) {
	if name, ok := call.Fun.(*ast.Ident); !ok || name.Name != "Label" {
		return nil
	}
	for _, arg := range call.Args {
		if literal, ok := arg.(*ast.BasicLit); ok {
			text, _ := strconv.Unquote(literal.Value)
			texts = append(texts, text)
		}
	}
	return texts
}

// add adds the labels of one spec.
func add(texts []string, found map[string]bool) {
	quick := !slices.Contains(texts, "slow")
	for _, text := range texts {
		found[text] = found[text] || quick
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
