package cni_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
)

var _ = Describe("Error", func() {
	DescribeTable("is written in every version", each(func(version string) {
		e := cni.Errorf(cni.CodeConfig, "mtu: %d <too> small & odd", 5)
		e.Details = "more\nto say"
		Expect(string(e.Encode(version))).To(Equal(`{
    "cniVersion": "` + version + `",
    "code": 7,
    "msg": "mtu: 5 <too> small & odd",
    "details": "more\nto say"
}`))
		back, ok := cni.DecodeError(e.Encode(version))
		Expect(ok).To(BeTrue())
		Expect(back).To(Equal(&cni.Error{Code: 7, Msg: e.Msg, Details: e.Details}))
	})...)

	It("has no details when there is nothing more to say", func() {
		Expect(string(cni.Errorf(11, "x").Encode("1.0.0"))).NotTo(ContainSubstring("details"))
	})

	It("wraps its causes", func() {
		e := cni.Errorf(cni.CodeIO, "file %q: %w", "f", fs.ErrExist)
		Expect(errors.Is(e, fs.ErrExist)).To(BeTrue())
		Expect(e.Error()).To(Equal(`file "f": file already exists`))
		e = cni.Errorf(cni.CodeIO, "%w, %w", fs.ErrClosed, fs.ErrInvalid)
		Expect(errors.Is(e, fs.ErrClosed)).To(BeTrue())
		Expect(errors.Is(e, fs.ErrInvalid)).To(BeTrue())
	})

	inner := &cni.Error{Code: 11, Msg: "busy", Details: "by 17"}
	DescribeTable("is made of any error", func(err error, want cni.Error) {
		got := cni.AsError(err)
		Expect(cni.Error{Code: got.Code, Msg: got.Msg, Details: got.Details}).To(Equal(want))
		Expect(errors.Is(got, err)).To(BeTrue())
	},
		Entry("itself", inner, *inner),
		Entry("wrapped: its code and details, the outer message", fmt.Errorf("lease: %w", inner),
			cni.Error{Code: 11, Msg: "lease: busy", Details: "by 17"}),
		Entry("joined", errors.Join(errors.New("other"), inner),
			cni.Error{Code: 11, Msg: "other\nbusy", Details: "by 17"}),
		Entry("wrapped in one with another code", cni.Errorf(102, "answer: %w", inner),
			cni.Error{Code: 102, Msg: "answer: busy: by 17"}),
		Entry("wrapped, without details", fmt.Errorf("lease: %w", &cni.Error{Code: 11, Msg: "busy: "}),
			cni.Error{Code: 11, Msg: "lease: busy: "}),
		Entry("a file's", &fs.PathError{Op: "open", Path: "/x", Err: fs.ErrNotExist},
			cni.Error{Code: 5, Msg: "open /x: file does not exist"}),
		Entry("any other", errors.New("oops"), cni.Error{Code: 999, Msg: "oops"}),
	)

	It("is made of no error", func() { Expect(cni.AsError(nil)).To(BeNil()) })

	It("is never code 0, which would mean that nothing went wrong", func() {
		Expect(cni.AsError(&cni.Error{Msg: "x"}).Code).To(Equal(cni.CodeInternal))
		e, ok := cni.DecodeError([]byte(`{"code": 0, "msg": "x"}`))
		Expect(ok).To(BeTrue())
		Expect(e.Code).To(Equal(cni.CodeInternal))
	})

	DescribeTable("is not read from anything else", func(doc string) {
		_, ok := cni.DecodeError([]byte(doc))
		Expect(ok).To(BeFalse())
	},
		Entry("nothing", ""), Entry("text", "panic: x"), Entry("null", "null"), Entry("a list", "[]"),
		Entry("a result", `{"cniVersion": "1.0.0", "ips": []}`), Entry("a code that is text",
			`{"code": "7", "msg": "x"}`),
		Entry("a negative code", `{"code": -1, "msg": "x"}`), Entry("two documents", `{"code": 7}{"code": 7}`),
	)
})

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
