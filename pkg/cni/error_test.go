package cni_test

import (
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
