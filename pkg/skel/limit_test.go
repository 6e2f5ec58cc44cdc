package skel_test

import (
	"context"
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

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

	It("does not extend a deadline that there is", func() {
		parent, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		at, _ := skel.Limit(parent, time.Hour).Deadline()
		Expect(time.Until(at)).To(BeNumerically("<=", time.Minute))
	})
})
