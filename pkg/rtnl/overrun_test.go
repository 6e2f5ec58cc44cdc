package rtnl

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("events that overran the socket", func() {
	It("are a reason to look again", func() {
		nstest.NewHost().Do(func() {
			c, err := Dial(nil)
			Expect(err).NotTo(HaveOccurred())
			defer c.Close()
			ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(nstest.Hang))
			defer cancel()
			looks := 0
			Expect(c.wait(ctx, unix.RTNLGRP_LINK, 1, func() (string, error) {
				looks++
				switch looks {
				case 1: // before the subscription
				case 2:
					for i := range 1000 {
						alias := fmt.Sprint(i)
						Expect(c.SetLink(1, LinkChange{Alias: &alias})).To(Succeed())
					}
				default:
					return "", nil
				}
				return "the third look", nil
			})).To(Succeed())
		})
	})
})
