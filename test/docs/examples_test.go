package docs_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var fence = regexp.MustCompile("(?ms)^```json\n(.*?)^```$")

// example is a JSON document that a page shows.
type example struct {
	page string // from the root
	text string
	doc  object
}

func examples(page string) (list []example) {
	GinkgoHelper()
	for _, m := range fence.FindAllStringSubmatch(read(root(page)), -1) {
		doc, ok := parsed(m[1]).(object)
		Expect(ok).To(BeTrue(), "%s: no object:\n%s", page, m[1])
		list = append(list, example{page, m[1], doc})
	}
	return list
}

// pages are all that people read.
func pages() (list []string) {
	GinkgoHelper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "plugins/*/*.md", "plugins/*/*/*.md"} {
		files, err := filepath.Glob(root(pattern))
		Expect(err).NotTo(HaveOccurred())
		for _, f := range files {
			page, err := filepath.Rel(root(), f)
			Expect(err).NotTo(HaveOccurred())
			list = append(list, page)
		}
	}
	return list
}

func (e example) schema() string {
	has := func(key string) bool { return e.doc[key] != nil }
	switch {
	case has("code"):
		return "error"
	case has("plugins"), has("type"):
		return "network"
	}
	return "result"
}

var _ = Describe("the pages", func() {
	It("show JSON that the schemas take, and the parsers", Label("examples"), func() {
		seen := map[string]int{}
		for _, page := range pages() {
			for _, e := range examples(page) {
				seen[e.schema()]++
				Expect(validate(schema(e.schema()), e.doc)).To(Succeed(), "%s:\n%s", page, e.text)
				if e.schema() != "network" {
					continue
				}
				for plugin := range plugins {
					r, code := checkConfig(plugin, e.text)
					Expect(code).To(Or(BeZero(), Equal(3)), "%s: %s", page, e.text) // 3: it is other plugins'
					Expect(r.lines("warning")).To(BeEmpty(), "%s: %s", page, e.text)
				}
			}
		}
		Expect(seen).To(And(HaveKeyWithValue("network", BeNumerically(">", 15)), HaveKeyWithValue("error", 1)))
	})

	It("show no JSON outside of a block that is checked", func() {
		plain := regexp.MustCompile(`(?m)^(    .*"(type|cniVersion)": ".*|.*<<<'\{.*)$`)
		for _, page := range pages() {
			text := fence.ReplaceAllString(read(root(page)), "")
			for _, line := range plain.FindAllString(text, -1) {
				Fail(fmt.Sprintf("%s: %s", page, strings.TrimSpace(line)))
			}
		}
	})
})

var _ = Describe("the schema of results", func() {
	It("takes every result that the specs of the plugins have on record", func() {
		files := append(glob("pkg/cni/testdata/*.json"), glob("plugins/*/*/testdata/*.json")...)
		Expect(len(files)).To(BeNumerically(">=", 25))
		for _, file := range files {
			Expect(validate(schema("result"), parsed(read(file)))).To(Succeed(), file)
		}
	})
})
