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

// phrases returns the parts of a text that verbs such as %s and the placeholders of why separate, without parts of less
// than three words.
func phrases(text string) (all []string) {
	for _, part := range regexp.MustCompile(`%[#.\d\[\]]*[a-z]|\n|OBJECT|FILE`).Split(text, -1) {
		words := strings.Fields(strings.Trim(part, " :;,.()"))
		if len(words) >= 3 {
			all = append(all, strings.Join(words, " "))
		}
	}
	return all
}

// Specs expect a sentence if they have all its phrases. Such a spec also shows where the sentence does not appear:
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
		"node/packet.go"} {
		for _, text := range texts(filepath.Join(nstest.Root(), "cmd/hawser", name)) {
			for _, phrase := range phrases(text) {
				var in []string
				for file, spec := range specs {
					if strings.Contains(spec, phrase) {
						in = append(in, filepath.Base(file))
					}
				}
				slices.Sort(in)
				AddReportEntry(name+": "+text+": "+phrase, strings.Join(in, ", "), ReportEntryVisibilityNever)
				if in == nil {
					missing = append(missing, name+": "+phrase)
				}
			}
		}
	}
	Expect(missing).To(BeEmpty())
})
