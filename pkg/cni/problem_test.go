package cni_test

import (
	"encoding/json"
	"errors"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// keyed is a configuration with a value of each kind.
type keyed struct {
	Name  string   `json:"name"`
	MTU   int      `json:"mtu"`
	Up    bool     `json:"up"`
	Names []string `json:"names"`
	Trunk []struct {
		ID *int `json:"id"`
	} `json:"trunk"`
	IPAM struct {
		Ranges [][]struct {
			Subnet string `json:"subnet"`
		} `json:"ranges"`
	} `json:"ipam"`
}

func lines(err error) []string {
	var out []string
	for _, p := range cni.ProblemsOf(err) {
		line := p.String()
		if p.Suggestion != "" {
			line += " -> " + p.Suggestion
		}
		out = append(out, line)
	}
	return out
}

var _ = Describe("Problems", func() {
	It("are the first value of the wrong type, with its way, and the rest is read", func() {
		wire := keyed{Name: "default"}
		err := cni.Unmarshal([]byte(`{"names": ["a", "b"], "trunk": [{"id": 1}, {"id": "2"}, {"id": 3}],
			"MTU": "1400"}`), &wire)
		Expect(lines(err)).To(HaveExactElements(`trunk[1].id: is a JSON string, want a whole number`))
		Expect(wire.Name).To(Equal("default"))
		Expect(wire.Names).To(Equal([]string{"a", "b"}))
		Expect(*wire.Trunk[2].ID).To(Equal(3))
	})

	It("make one error: the first one's code and message, the others in its details", func() {
		var all cni.Problems
		Expect(all.Err()).To(Succeed())
		all.Add(nil)
		Expect(all.Err()).To(Succeed())
		all.Add(cni.Refuse("mtu", 5, "is too small").Suggest("use %d", 68))
		all.Add(fmt.Errorf("vlan: %w", errors.New("boom")))
		all.Add(cni.Errorf(cni.CodeEnvironment, "CNI_ARGS: unknown keys A"))
		all.Add(cni.Refuse("ipam.type", nil, "missing"))
		all.Add(cni.Refuse("bridge", "a b", "is no name"))
		all.Add(cni.Refuse("port", json.RawMessage("[1]"), "is no number"))
		e := cni.AsError(all.Err())
		Expect([]any{e.Code, e.Msg}).To(HaveExactElements(cni.CodeConfig, "mtu: 5 is too small"))
		Expect(e.Details).To(Equal(`vlan: boom; CNI_ARGS: unknown keys A; ipam.type: missing; ` +
			`bridge: "a b" is no name; port: [1] is no number`))
		Expect(lines(e)[0]).To(Equal("mtu: 5 is too small -> use 68"))
		codes := []uint{}
		for _, p := range cni.ProblemsOf(e) {
			codes = append(codes, p.Code)
		}
		Expect(codes).To(HaveExactElements(cni.CodeConfig, cni.CodeInternal, cni.CodeEnvironment, cni.CodeConfig,
			cni.CodeConfig, cni.CodeConfig))
	})

	DescribeTable("of a value count once", func(first, second string, both bool) {
		var all cni.Problems
		all.Add(cni.Refuse(first, 1, "is bad"))
		all.Add(cni.Refuse(second, 2, "is bad too"))
		Expect(cni.ProblemsOf(all.Err())).To(HaveLen(map[bool]int{true: 2, false: 1}[both]))
	},
		Entry("the same", "ipam.type", "ipam.type", false),
		Entry("the same in another case", "IPAM.type", "ipam.Type", false),
		Entry("what is in it", "ipam", "ipam.type", false),
		Entry("an element of it", "trunk", "trunk[1].id", false),
		Entry("what it is in", "trunk[1].id", "trunk[1]", true),
		Entry("a longer name", "mtu", "mtus", true),
		Entry("another one", "ipam.a", "ipam.b", true),
		Entry("no key", "", "", true),
	)

	It("of any other error are that error", func() {
		Expect(cni.ProblemsOf(nil)).To(BeEmpty())
		Expect(cni.ProblemsOf(errors.New("x"))).To(Equal([]cni.Problem{{Code: cni.CodeInternal, Reason: "x"}}))
	})
})
