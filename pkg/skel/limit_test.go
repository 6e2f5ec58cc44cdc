package skel_test

import (
	"bytes"
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

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
