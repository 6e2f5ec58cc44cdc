// Package docs_test holds docs/ and the READMEs to what the plugins do: the schemas to the parsers, the tables
// of keys to the schemas, the examples to a host on which they are run.
package docs_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestDocs(t *testing.T) { nstest.RunSpecs(t, "docs: schemas, tables and examples") }

type object = plugintest.Object

func root(name ...string) string {
	return filepath.Join(append([]string{nstest.Root()}, name...)...)
}

func glob(pattern string) []string {
	GinkgoHelper()
	files := nstest.Must(filepath.Glob(root(pattern)))
	Expect(files).NotTo(BeEmpty(), pattern)
	return files
}

func read(file string) string {
	GinkgoHelper()
	data := nstest.Must(os.ReadFile(file))
	return string(data)
}

// compiled are the schemas of this run.
var compiled = map[string]*jsonschema.Schema{}

// schema is docs/schema/NAME.json, compiled; the compiler refuses what is no
// schema of draft 2020-12. Nothing is looked up in the net.
func schema(name string) *jsonschema.Schema {
	GinkgoHelper()
	if s, ok := compiled[name]; ok {
		return s
	}
	c := jsonschema.NewCompiler()
	ids := map[string]string{}
	for _, file := range glob("docs/schema/*.json") {
		doc := nstest.Must(jsonschema.UnmarshalJSON(strings.NewReader(read(file))))
		id, _ := doc.(object)["$id"].(string)
		Expect(id).To(HaveSuffix("/docs/schema/" + filepath.Base(file)))
		Expect(c.AddResource(id, doc)).To(Succeed())
		ids[filepath.Base(file)] = id
	}
	s := nstest.Must(c.Compile(ids[name+".json"]))
	compiled[name] = s
	return s
}

func validate(s *jsonschema.Schema, doc any) error {
	GinkgoHelper()
	plain := nstest.Must(jsonschema.UnmarshalJSON(strings.NewReader(plugintest.Text(doc))))
	return s.Validate(plain)
}

func parsed(text string) (doc any) {
	GinkgoHelper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	Expect(d.Decode(&doc)).To(Succeed(), text)
	return doc
}
