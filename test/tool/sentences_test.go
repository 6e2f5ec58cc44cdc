package tool_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// texts returns the string constants of a file, except imports, struct tags and the descriptions of commands. The
// constants of one sum are one text, in which %s replaces each other value.
func texts(file string) (all []string) {
	GinkgoHelper()
	var collect func(n ast.Node) bool
	var text func(n ast.Expr) string
	text = func(n ast.Expr) string {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				return nstest.Must(strconv.Unquote(n.Value))
			}
		case *ast.BinaryExpr:
			return text(n.X) + text(n.Y)
		default:
			ast.Inspect(n, collect)
		}
		return "%s"
	}
	collect = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec, *ast.StructType:
			return false
		case *ast.CallExpr:
			f, _ := n.Fun.(*ast.SelectorExpr)
			switch {
			case f == nil:
			case f.Sel.Name == "command":
				ast.Inspect(n.Args[len(n.Args)-1], collect)
				return false
			case slices.Contains([]string{"Contains", "HasPrefix", "TrimSuffix", "MustCompile"}, f.Sel.Name):
				return false // compared with other text
			}
		case *ast.ValueSpec:
			return len(n.Names) == 0 || n.Names[0].Name != "short"
		case *ast.BinaryExpr:
			if n.Op == token.ADD {
				all = append(all, text(n))
				return false
			}
		case *ast.BasicLit:
			all = append(all, text(n))
		}
		return true
	}
	ast.Inspect(nstest.Must(parser.ParseFile(token.NewFileSet(), file, nil, 0)), collect)
	return all
}

// phrases returns the parts of a text between verbs such as %s and the placeholders of why, except parts of fewer than
// three words.
func phrases(text string) (all []string) {
	for _, part := range regexp.MustCompile(`%[#.\d\[\]]*[a-z]|\n|OBJECT|FILE`).Split(text, -1) {
		words := strings.Fields(strings.Trim(part, " :;,.()"))
		if len(words) >= 3 {
			all = append(all, strings.Join(words, " "))
		}
	}
	return all
}

// silences names, for each file with sentences, a spec in which none of them appears, and what that spec expects.
var silences = map[string][2]string{
	"tool/doctor.go":      {"test/tool/healthy_test.go", `Equal([]any{"nothing is wrong\n", 0})`},
	"tool/doctorhost.go":  {"test/tool/healthy_test.go", `Equal([]any{"nothing is wrong\n", 0})`},
	"tool/doctorlists.go": {"test/tool/healthy_test.go", `Equal([]any{"nothing is wrong\n", 0})`},
	"tool/doctornode.go":  {"test/tool/healthy_test.go", `Equal([]any{"nothing is wrong\n", 0})`},
	"tool/doctorrules.go": {"test/tool/rules_test.go", `NotTo(ContainSubstring("drop-policy"))`},
	"tool/check.go":       {"test/tool/check_test.go", "Expect(m.checks()).To(BeEmpty())"},
	"tool/checkchain.go":  {"test/tool/check_test.go", "Expect(m.checks()).To(BeEmpty())"},
	"tool/why.go":         {"cmd/hawser/tool/why_test.go", "Expect(said).To(HaveSuffix(says))"},
	"tool/explain.go":     {"test/tool/healthy_test.go", "obstacles\\n  none found"},
	"node/packet.go":      {"test/tool/rules_test.go", "obstacles\\n  none found"},
}

// Specs expect a sentence if they contain all its phrases. fault.breaks also shows that a sentence of doctor appears
// neither before the fault nor after the repair.
var _ = It("a spec expects each sentence of doctor, check, why and explain", Label("tool-doctor"), func() {
	specs := map[string]string{} // all texts of each file
	for _, pattern := range []string{"test/tool/*_test.go", "cmd/hawser/tool/*_test.go"} {
		for _, file := range nstest.Must(filepath.Glob(filepath.Join(nstest.Root(), pattern))) {
			specs[file] = strings.Join(strings.Fields(strings.Join(texts(file), " \x00 ")), " ")
		}
	}
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(silences)) {
		silence := silences[name]
		spec := string(nstest.Must(os.ReadFile(filepath.Join(nstest.Root(), silence[0]))))
		Expect(spec).To(ContainSubstring(silence[1]), name)
		for _, text := range texts(filepath.Join(nstest.Root(), "cmd/hawser", name)) {
			for _, phrase := range phrases(text) {
				var in []string
				for file, spec := range specs {
					if strings.Contains(spec, phrase) {
						in = append(in, filepath.Base(file))
					}
				}
				slices.Sort(in)
				AddReportEntry(name+": "+text+": "+phrase, strings.Join(in, ", ")+"; not in "+silence[0],
					ReportEntryVisibilityNever)
				if in == nil {
					missing = append(missing, name+": "+phrase)
				}
			}
		}
	}
	Expect(missing).To(BeEmpty())
})
