package skel_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

var _ = Describe("the undos of ADD", func() {
	var log []string
	note := func(what string) func(context.Context) error {
		return func(context.Context) error { log = append(log, what); return nil }
	}
	BeforeEach(func() { log = nil })

	// adding is a plugin that has three effects and ends with end.
	adding := func(end func() (*cni.Result, error)) skel.Plugin[any] {
		return skel.Plugin[any]{Name: "probe",
			Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) {
				r.OnFail("remove one", note("one"))
				r.OnFail("remove two", note("two"))
				r.OnFail("remove three", note("three"))
				return end()
			}}
	}

	DescribeTable("run last in, first out", func(end func() (*cni.Result, error), code uint, message any) {
		attach("ADD").run(adding(end)).expectError(code, message)
		Expect(log).To(HaveExactElements("three", "two", "one"))
	},
		Entry("after an error", func() (*cni.Result, error) { return oneAddress(), errHandler }, cni.CodeInternal,
			"the handler was called"),
		Entry("after a panic", func() (*cni.Result, error) { panic(errHandler) }, cni.CodeInternal,
			"internal error: the handler was called"),
		Entry("without a result", func() (*cni.Result, error) { return nil, nil }, cni.CodeInternal,
			"the plugin returned no result"),
	)

	It("do not run after a success", func() {
		attach("ADD").run(adding(func() (*cni.Result, error) { return oneAddress(), nil })).document()
		Expect(log).To(BeEmpty())
	})

	It("all run, and what failed is told in the details, with the first error's own", func() {
		p := skel.Plugin[any]{Name: "probe", Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) {
			r.OnFail("remove one", note("one"))
			r.OnFail("remove two", func(context.Context) error { return errors.New("no") })
			r.OnFail("remove three", func(context.Context) error { panic("never") })
			return nil, &cni.Error{Code: cni.CodeIPAM, Msg: "the first", Details: "its own"}
		}}
		doc := attach("ADD").run(p).expectError(cni.CodeIPAM, "the first")
		Expect(doc["details"]).To(HavePrefix("its own; roll-back: remove three: internal error: never: goroutine"))
		Expect(doc["details"]).To(HaveSuffix("; roll-back: remove two: no"))
		Expect(log).To(HaveExactElements("one"))
	})

	It("are not told to end by what ended the call", func() {
		ctx, cancel := context.WithCancelCause(context.Background())
		p := skel.Plugin[any]{Name: "probe",
			Add: func(ctx context.Context, r *skel.Request, _ any) (*cni.Result, error) {
				r.OnFail("remove one", func(undo context.Context) error {
					log = append(log, "one")
					return undo.Err()
				})
				cancel(errors.New("terminated"))
				<-ctx.Done()
				return nil, ctx.Err()
			}}
		doc := attach("ADD").runIn(ctx, p).expectError(cni.CodeTryAgain, "stopped: terminated: context canceled")
		Expect(doc).NotTo(HaveKey("details"))
		Expect(log).To(HaveExactElements("one"))
	})

	It("run when the handler did not notice that the call was ended", func() {
		ctx, cancel := context.WithCancelCause(context.Background())
		a := attach("ADD").runIn(ctx, adding(func() (*cni.Result, error) {
			cancel(errors.New("terminated"))
			return oneAddress(), nil
		}))
		a.expectError(cni.CodeTryAgain, "stopped: terminated")
		Expect(log).To(HaveExactElements("three", "two", "one"))
	})

	It("leave a handler's own code alone when the call was ended", func() {
		ctx, cancel := context.WithCancel(context.Background())
		attach("ADD").runIn(ctx, adding(func() (*cni.Result, error) {
			cancel()
			return nil, cni.Errorf(cni.CodeConflict, "taken")
		})).expectError(cni.CodeConflict, "taken")
	})

	It("belong to ADD alone", func() {
		for _, command := range []string{"DEL", "CHECK"} {
			attach(command).run(probe(func(r *skel.Request) error {
				r.OnFail("remove one", note("one"))
				return errHandler
			})).expectError(cni.CodeInternal, "the handler was called")
		}
		Expect(log).To(BeEmpty())
	})

	It("run once when half of the result was written, and no second document follows", func() {
		r := attach("ADD")
		r.stdin = nil
		half := &halfWriter{}
		code := skel.Run(context.Background(), adding(func() (*cni.Result, error) { return oneAddress(), nil }),
			skel.Env{
				Vars: r.vars(), Stdin: conf(), Stdout: half, Stderr: GinkgoWriter,
			})
		Expect(code).To(Equal(1))
		Expect(half.writes).To(Equal(1))
		Expect(log).To(HaveExactElements("three", "two", "one"))
	})
})

var _ = Describe("the time that a call has", func() {
	brief := 50 * time.Millisecond
	serve := func(command string, limit time.Duration, p skel.Plugin[any]) answer {
		GinkgoHelper()
		var out bytes.Buffer
		r := attach(command)
		if command == "GC" {
			r.conf = strings.Replace(conf1, "{", `{"cni.dev/valid-attachments": [], `, 1)
		}
		code := skel.Run(context.Background(), p,
			skel.Env{Vars: r.vars(), Stdin: strings.NewReader(r.conf), Stdout: &out, Stderr: GinkgoWriter,
				Limit: limit})
		return answer{code: code, stdout: out.String()}
	}
	waits := func(ctx context.Context, _ *skel.Request) error {
		<-ctx.Done()
		return ctx.Err()
	}

	DescribeTable("ends, and with it what it waits for, in", func(command string) {
		a := serve(command, brief, skel.Plugin[any]{Name: "probe",
			Add: func(ctx context.Context, r *skel.Request, _ any) (*cni.Result, error) { return nil, waits(ctx, r) },
			Del: waits, Check: parsed(waits), GC: waits, Status: parsed(waits)})
		a.expectError(cni.CodeTryAgain, "no time left: context deadline exceeded")
	}, Entry(nil, "ADD"), Entry(nil, "DEL"), Entry(nil, "CHECK"), Entry(nil, "GC"), Entry(nil, "STATUS"))

	DescribeTable("is less than a kubelet's two minutes in", Label("locks"), func(command string) {
		looks := func(ctx context.Context, _ *skel.Request) error {
			at, _ := ctx.Deadline()
			Expect(time.Until(at)).To(BeNumerically("~", 90*time.Second, nstest.Patience(5*time.Second)))
			return errHandler
		}
		serve(command, 0, skel.Plugin[any]{Name: "probe",
			Add: func(ctx context.Context, r *skel.Request, _ any) (*cni.Result, error) { return nil, looks(ctx, r) },
			Del: looks, Check: parsed(looks), GC: looks, Status: parsed(looks)}).
			expectError(cni.CodeInternal, errHandler.Error())
	}, Entry(nil, "ADD"), Entry(nil, "DEL"), Entry(nil, "CHECK"), Entry(nil, "GC"), Entry(nil, "STATUS"))

	It("is limited for the roll-back as a whole, and for each step of it", Label("locks"), func() {
		var left []time.Duration
		a := serve("ADD", 18*time.Second, skel.Plugin[any]{Name: "probe",
			Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) {
				r.OnFail("remove one", func(ctx context.Context) error { return ctx.Err() })
				r.OnFail("remove two", func(ctx context.Context) error { return waits(ctx, r) })
				return nil, errHandler
			}})
		doc := a.expectError(cni.CodeInternal, errHandler.Error())
		Expect(doc).To(HaveKeyWithValue("details", "roll-back: remove two: context deadline exceeded"))
		serve("ADD", 0, skel.Plugin[any]{Name: "probe",
			Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) {
				r.OnFail("remove it", func(ctx context.Context) error {
					at, _ := ctx.Deadline()
					left = append(left, time.Until(at))
					return nil
				})
				return nil, errHandler
			}}).expectError(cni.CodeInternal, errHandler.Error())
		Expect(left).To(ConsistOf(BeNumerically("~", 15*time.Second, nstest.Patience(5*time.Second))))
	})
})

var _ = It("Most gives two thirds of the time that there is to what may wait", func() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	most, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	at, _ := most.Deadline()
	Expect(at).To(BeTemporally("~", time.Now().Add(40*time.Minute), time.Minute))
	most, cancel = skel.WithTwoThirds(context.Background())
	defer cancel()
	_, ok := most.Deadline()
	Expect(ok).To(BeFalse())
})
