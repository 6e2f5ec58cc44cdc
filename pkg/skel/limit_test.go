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
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

var _ = Describe("the time that a call has", func() {
	brief := 50 * time.Millisecond
	serve := func(command string, l skel.Limits, p skel.Plugin[any]) answer {
		GinkgoHelper()
		var out bytes.Buffer
		r := attach(command)
		if command == "GC" {
			r.conf = strings.Replace(conf1, "{", `{"cni.dev/valid-attachments": [], `, 1)
		}
		code := skel.Run(context.Background(), p, skel.Env{Vars: r.vars(), Stdin: strings.NewReader(r.conf), Stdout: &out, Stderr: GinkgoWriter, Limits: l})
		return answer{code: code, stdout: out.String()}
	}
	waits := func(ctx context.Context, _ *skel.Request) error {
		<-ctx.Done()
		return ctx.Err()
	}

	DescribeTable("ends, and with it what it waits for, in", func(command string) {
		a := serve(command, skel.Limits{Call: brief}, skel.Plugin[any]{Name: "probe",
			Add: func(ctx context.Context, r *skel.Request, _ any) (*cni.Result, error) { return nil, waits(ctx, r) },
			Del: waits, Check: parsed(waits), GC: waits, Status: parsed(waits)})
		a.expectError(cni.CodeTryAgain, "no time left: context deadline exceeded")
	}, Entry(nil, "ADD"), Entry(nil, "DEL"), Entry(nil, "CHECK"), Entry(nil, "GC"), Entry(nil, "STATUS"))

	DescribeTable("is less than a kubelet's two minutes in", func(command string) {
		looks := func(ctx context.Context, _ *skel.Request) error {
			at, _ := ctx.Deadline()
			Expect(time.Until(at)).To(BeNumerically("~", 90*time.Second, nstest.Patience(5*time.Second)))
			return errHandler
		}
		serve(command, skel.Limits{}, skel.Plugin[any]{Name: "probe",
			Add: func(ctx context.Context, r *skel.Request, _ any) (*cni.Result, error) { return nil, looks(ctx, r) },
			Del: looks, Check: parsed(looks), GC: looks, Status: parsed(looks)}).expectError(cni.CodeInternal, errHandler.Error())
	}, Entry(nil, "ADD"), Entry(nil, "DEL"), Entry(nil, "CHECK"), Entry(nil, "GC"), Entry(nil, "STATUS"))

	It("is limited for the roll-back as a whole, and for each step of it", func() {
		var left []time.Duration
		a := serve("ADD", skel.Limits{Undo: brief, RollBack: time.Hour}, skel.Plugin[any]{Name: "probe",
			Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) {
				r.OnFail("remove one", func(ctx context.Context) error { return ctx.Err() })
				r.OnFail("remove two", func(ctx context.Context) error { return waits(ctx, r) })
				return nil, errHandler
			}})
		doc := a.expectError(cni.CodeInternal, errHandler.Error())
		Expect(doc).To(HaveKeyWithValue("details", "roll-back: remove two: context deadline exceeded"))
		serve("ADD", skel.Limits{Undo: time.Hour, RollBack: time.Minute}, skel.Plugin[any]{Name: "probe",
			Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) {
				r.OnFail("remove it", func(ctx context.Context) error {
					at, _ := ctx.Deadline()
					left = append(left, time.Until(at))
					return nil
				})
				return nil, errHandler
			}}).expectError(cni.CodeInternal, errHandler.Error())
		Expect(left).To(ConsistOf(BeNumerically("<=", time.Minute)))
	})
})

var _ = Describe("Limit", func() {
	soon := nstest.Patience(5 * time.Second)
	told := errors.New("told to end")

	It("ends who waits, and who only looks, when the time is up", func() {
		ctx := skel.Limit(context.Background(), 50*time.Millisecond)
		at, ok := ctx.Deadline()
		Expect(ok).To(BeTrue())
		Expect(time.Until(at)).To(BeNumerically("<=", 50*time.Millisecond))
		Expect(ctx.Err()).NotTo(HaveOccurred())
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		Eventually(ctx.Err).WithTimeout(soon).Should(MatchError(context.DeadlineExceeded))
		Expect(context.Cause(ctx)).To(MatchError(context.DeadlineExceeded))
		Eventually(ctx.Done()).WithTimeout(soon).Should(BeClosed())
		Eventually(child.Done()).WithTimeout(soon).Should(BeClosed())
		Expect(child.Err()).To(MatchError(context.DeadlineExceeded))
	})

	It("ends with its parent, for its cause", func() {
		parent, end := context.WithCancelCause(context.Background())
		ctx := skel.Limit(parent, time.Hour)
		child, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		Expect(ctx.Done()).NotTo(BeClosed())
		end(told)
		Eventually(ctx.Done()).WithTimeout(soon).Should(BeClosed())
		Eventually(child.Done()).WithTimeout(soon).Should(BeClosed())
		Expect(ctx.Err()).To(MatchError(context.Canceled))
		Expect(context.Cause(ctx)).To(MatchError(told))
		Expect(context.Cause(child)).To(MatchError(told))
	})

	It("gives most of the time that there is to what may wait", func() {
		began := time.Now()
		at, _ := skel.Most(skel.Limit(context.Background(), time.Hour)).Deadline()
		Expect(at).To(BeTemporally("~", began.Add(40*time.Minute), time.Minute))
		_, ok := skel.Most(context.Background()).Deadline()
		Expect(ok).To(BeFalse())
	})

	It("can be had without its deadline, by who keeps that itself", func() {
		parent, end := context.WithCancelCause(context.Background())
		ctx := skel.Limit(skel.Limit(parent, time.Hour), time.Minute)
		Expect(ctx.(interface{ Untimed() context.Context }).Untimed()).To(BeIdenticalTo(parent))
		end(told)
		Expect(context.Cause(ctx)).To(MatchError(told))
	})

	It("is an error of what waits for the kernel", func() {
		parent, end := context.WithCancelCause(context.Background())
		defer end(nil)
		nstest.NewHost().Do(func() {
			c, err := rtnl.Dial(nil)
			Expect(err).NotTo(HaveOccurred())
			defer c.Close()
			veth, err := c.AddVeth(rtnl.Veth{Name: "one", Peer: rtnl.Peer{Name: "two"}})
			Expect(err).NotTo(HaveOccurred())
			for _, ctx := range []context.Context{context.Background(), parent} {
				Expect(c.WaitUp(skel.Limit(ctx, 20*time.Millisecond), veth.Index)).To(MatchError(context.DeadlineExceeded))
			}
		})
	})

	It("does not extend a deadline that there is", func() {
		parent, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		at, _ := skel.Limit(parent, time.Hour).Deadline()
		Expect(time.Until(at)).To(BeNumerically("<=", time.Minute))
	})
})
