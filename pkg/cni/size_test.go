package cni_test

import (
	"encoding/json"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
)

type inSized struct {
	Short []string `json:"short" most:"2"`
}

type sized struct {
	inSized
	List   []string          `json:"list"`
	Nested [][]inSized       `json:"nested"`
	Text   string            `json:"text"`
	Map    map[string]string `json:"map"`
	Raw    json.RawMessage   `json:"raw"`
	Inner  *inSized          `json:"inner"`
	Other  []string          `json:"-"`
}

var _ = Describe("the sizes of a configuration", Label("sizes"), func() {
	long := strings.Repeat("ab", 2048)
	many := func(n int) (m map[string]string) {
		m = map[string]string{}
		for i := range n {
			m[fmt.Sprint(i)] = ""
		}
		return m
	}
	DescribeTable("are limited", func(wire any, want string) {
		err := cni.CheckSizes(wire)
		if want == "" {
			Expect(err).NotTo(HaveOccurred())
			return
		}
		Expect(err).To(MatchError(want))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
	},
		Entry("all at the limit", sized{List: make([]string, 256), Nested: [][]inSized{make([]inSized, 256)},
			Text: long, Map: many(256), Raw: make([]byte, 64<<10), inSized: inSized{make([]string, 2)}}, ""),
		Entry("a list", &sized{List: make([]string, 257)}, "list: has 257 elements, more than 256"),
		Entry("by the tag", sized{inSized: inSized{make([]string, 3)}}, "short: has 3 elements, more than 2"),
		Entry("in a list in a list", sized{Nested: [][]inSized{{}, {{}, {make([]string, 3)}}}},
			"nested[1][1].short: has 3 elements, more than 2"),
		Entry("behind a pointer", sized{Inner: &inSized{make([]string, 3)}},
			"inner.short: has 3 elements, more than 2"),
		Entry("a text", sized{Text: long + "c"}, `text: "`+long[:64]+`..." has 4097 bytes, more than 4096`),
		Entry("an object", sized{Map: many(257)}, "map: has 257 keys, more than 256"),
		Entry("a part that is not decoded", sized{Raw: make([]byte, 64<<10+1)},
			"raw: has 65537 bytes, more than 65536"),
		Entry("a field that is not a key", sized{Other: make([]string, 1000)}, ""),
	)

	It("also apply to a result", func() {
		list := strings.TrimSuffix(strings.Repeat(`{"dst": "10.0.0.0/8"},`, 1025), ",")
		_, err := cni.DecodeResult([]byte(`{"cniVersion": "1.0.0", "routes": [`+list+`]}`), "")
		Expect(err).To(MatchError("result: routes: has 1025 elements, more than 1024"))
	})

	It("also apply to the problems in an error", func() {
		var problems cni.Problems
		for i := range 100 {
			problems.Add(cni.Refuse(fmt.Sprintf("key%d", i), i, "is bad"))
		}
		Expect(cni.ProblemsOf(problems.Err())).To(HaveLen(64))
	})
})
