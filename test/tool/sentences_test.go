package tool_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// texts returns the string constants of a file, except imports, struct tags and the descriptions of commands. Constants
// that are added to each other are one text, in which %s stands for each other value.
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
				return false // compared with another text
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

// phrases returns each six successive words of a text, or three to five if the text has not more, which no verb such as
// %s separates.
func phrases(text string) (all []string) {
	words := strings.Fields(regexp.MustCompile(`%[#.\d\[\]]*[a-z]`).ReplaceAllString(text, " \x00 "))
	for n := 6; n >= 3 && all == nil; n-- {
		for i := 0; i+n <= len(words); i++ {
			if phrase := strings.Join(words[i:i+n], " "); !strings.Contains(phrase, "\x00") {
				all = append(all, phrase)
			}
		}
	}
	return all
}

// A spec expects a sentence if it has such a phrase of it. Such a spec also shows where the sentence does not appear:
// for doctor fault.breaks when all is mended and the healthy nodes, for check the whole list of complaints, for why the
// other entries of the table, and for explain the healthy nodes.
var _ = It("a spec expects each sentence of doctor, check, why and explain", Label("tool-doctor"), func() {
	specs := map[string]string{} // all texts of each file
	for _, pattern := range []string{"test/tool/*_test.go", "cmd/hawser/tool/*_test.go"} {
		for _, file := range nstest.Must(filepath.Glob(filepath.Join(nstest.Root(), pattern))) {
			specs[file] = strings.Join(strings.Fields(strings.Join(texts(file), " \x00 ")), " ")
		}
	}
	var missing []string
	for _, name := range []string{"tool/doctor.go", "tool/doctorhost.go", "tool/doctorlists.go", "tool/doctornode.go",
		"tool/doctorrules.go", "tool/check.go", "tool/checkchain.go", "tool/why.go", "tool/explain.go",
		"node/chains.go"} {
		for _, text := range texts(filepath.Join(nstest.Root(), "cmd/hawser", name)) {
			said, in := phrases(text), []string(nil)
			for file, spec := range specs {
				if slices.ContainsFunc(said, func(phrase string) bool { return strings.Contains(spec, phrase) }) {
					in = append(in, filepath.Base(file))
				}
			}
			slices.Sort(in)
			if said != nil {
				AddReportEntry(name+": "+text, strings.Join(in, ", "), ReportEntryVisibilityNever)
			}
			if said != nil && in == nil {
				missing = append(missing, name+": "+text)
			}
		}
	}
	Expect(missing).To(BeEmpty())
})
