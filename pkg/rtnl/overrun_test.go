package rtnl

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("events that overran the socket", func() {
	It("are a reason to look again", func() {
		h := nstest.NewHost()
		n, err := ns.Open(h.Path)
		Expect(err).NotTo(HaveOccurred())
		defer n.Close()
		c, err := Dial(n)
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		lo, err := c.Link("lo")
		Expect(err).NotTo(HaveOccurred())
		ev, err := c.subscribe(unix.RTNLGRP_LINK)
		Expect(err).NotTo(HaveOccurred())
		defer ev.Close()
		for i := range 1000 {
			alias := fmt.Sprint(i)
			Expect(c.SetLink(lo.Index, Change{Alias: &alias})).To(Succeed())
		}
		ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(10*time.Second))
		defer cancel()
		context.AfterFunc(ctx, func() { _ = ev.SetReadDeadline(time.Unix(1, 0)) })
		// No event is about this link, so only the loss can end it.
		Expect(nextEvent(ev, 9999)).To(Succeed())
	})
})
