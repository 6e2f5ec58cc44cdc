package plugins_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ref is a reference of a page to the specs with a label in a file or a package.
type ref struct{ place, label string }

const placePattern = "`(?:cmd|pkg|plugins|test)/[^`]+`"

var (
	refs        = regexp.MustCompile("((?:" + placePattern + ", )*" + placePattern + "): `([^`]+)`")
	places      = regexp.MustCompile(placePattern + "[:,]")
	packageLine = regexp.MustCompile("(?m)^Specs: (" + placePattern + ")$")
	promises    = regexp.MustCompile(`\(([^()]+)\)`)
	label       = regexp.MustCompile("^`([a-z0-9-]+)`$")
)

// references returns the references in text, which names one label for one or more files or packages. In parentheses,
// a label without a package belongs to home.
func references(text, home string) (all []ref) {
	text = strings.Join(strings.Fields(text), " ")
	for _, m := range refs.FindAllStringSubmatch(text, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			all = append(all, ref{strings.Trim(name, "`"), m[2]})
		}
	}
	for _, m := range promises.FindAllStringSubmatch(text, -1) {
		for part := range strings.SplitSeq(m[1], "; ") {
			if own := label.FindStringSubmatch(part); own != nil && home != "" {
				all = append(all, ref{home, own[1]})
			}
		}
	}
	return all
}

// section is a part of a page below a heading, with the package whose labels it names without a package.
type section struct{ text, home string }

func sections(page string) (all []section) {
	for text := range strings.SplitSeq(page, "\n## ") {
		s := section{text: text}
		if m := packageLine.FindStringSubmatch(text); m != nil {
			s.home = strings.Trim(m[1], "`")
		}
		all = append(all, s)
	}
	return all
}

// TestContract finds each place and label that the pages about promises name.
func TestContract(t *testing.T) {
	for _, name := range []string{"docs/contract.md", "docs/reliability.md", "SECURITY.md"} {
		page := read(t, name)
		all := references(page, "")
		if named := len(places.FindAllString(page, -1)); len(all) != named || named == 0 {
			t.Errorf("%s: the labels of %d of %d files and packages can be read", name, len(all), named)
		}
		for _, s := range sections(page) {
			all = append(all, references(s.text, s.home)...)
		}
		for _, r := range all {
			if _, found := labels(t, r.place)[r.label]; !found {
				t.Errorf("%s: %s: no label %q", name, r.place, r.label)
			}
		}
	}
}

// TestContractQuick verifies that make test runs at least one spec of each promise, which is the text before
// parentheses with labels. Only the suites with a module of their own are exempt: they need a runtime, an API server
// or a release, and have their own make targets. With -v it lists the specs.
func TestContractQuick(t *testing.T) {
	left := leftOut(t)
	for _, s := range sections(read(t, "docs/contract.md")) {
		for _, item := range strings.Split(s.text, "\n- ")[1:] {
			if len(references(item, s.home)) == 0 {
				t.Errorf("docs/contract.md: no spec is named for the promise %q", item)
			}
			for _, m := range promises.FindAllString(item, -1) {
				if all := references(m, s.home); len(all) > 0 {
					testQuick(t, left, all)
				}
			}
		}
	}
}

// testQuick verifies that make test runs a spec of one of the references of a promise.
func testQuick(t *testing.T, left []string, all []ref) {
	t.Helper()
	kept, exempt := []ref(nil), true
	for _, r := range all {
		own := hasOwnModule(r.place)
		exempt = exempt && own
		if !own && !slices.Contains(left, dirOf(r.place)) && labels(t, r.place)[r.label] {
			kept = append(kept, r)
		}
	}
	if len(kept) == 0 && !exempt {
		t.Errorf("docs/contract.md: no spec in make test keeps the promise of %v", all)
	}
	t.Log(kept)
}

func TestReferences(t *testing.T) {
	text := "A promise (`one`; `pkg/a`,\n  `test/b/b_test.go`: `two`), a remark (not `three`), (`test/c`: `four`)."
	explicit := []ref{{"pkg/a", "two"}, {"test/b/b_test.go", "two"}, {"test/c", "four"}}
	if got := references(text, ""); !slices.Equal(got, explicit) {
		t.Error(got)
	}
	if got := references(text, "pkg/home"); !slices.Equal(got, append(explicit, ref{"pkg/home", "one"})) {
		t.Error(got)
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

// dirOf returns the directory of a file or a package.
func dirOf(place string) string {
	if strings.HasSuffix(place, ".go") {
		return path.Dir(place)
	}
	return place
}

// hasOwnModule reports whether a place belongs to a module other than the root's and test/.
func hasOwnModule(place string) bool {
	for dir := dirOf(place); dir != "." && dir != "test"; dir = path.Dir(dir) {
		if _, err := os.Stat(dir + "/go.mod"); err == nil {
			return true
		}
	}
	return false
}

// leftOut returns the directories that scripts/test.sh leaves to make test-all.
func leftOut(t *testing.T) []string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^slow=\((.*)\)$`).FindStringSubmatch(read(t, "scripts/test.sh"))
	if m == nil {
		t.Fatal("scripts/test.sh has no line slow=(...)")
	}
	dirs := strings.Fields(m[1])
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			t.Error("scripts/test.sh:", err)
		}
	}
	return dirs
}

var parsed = map[string]map[string]bool{}

// labels returns the labels of the specs in a file or a package, and for each whether a spec has it that is not labeled
// "slow".
func labels(t *testing.T, place string) map[string]bool {
	t.Helper()
	if found, ok := parsed[place]; ok {
		return found
	}
	files := []string{place}
	if dirOf(place) == place {
		files, _ = filepath.Glob(place + "/*.go")
	}
	found := map[string]bool{}
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		collect(tree, nil, found)
	}
	parsed[place] = found
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
