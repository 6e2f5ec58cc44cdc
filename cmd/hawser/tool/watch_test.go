package tool

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("the pace of hawser watch", Label("tool-watch"), func() {
	It("grows with what is deleted each time, but not for messages that were lost", func() {
		p := pace{pause: time.Hour, most: time.Hour, last: time.Now()}
		Expect(p.deleted(p.most)).To(BeTrue())
		Expect(p.pause).To(Equal(time.Hour))
		Expect(p.deleted(p.most)).To(BeFalse())
		Expect(p.deleted(lostTime)).To(BeTrue())
		Expect(p.pause).To(Equal(lostTime))
		Expect(p.deleted(p.most)).To(BeFalse())
		Expect(p.deleted(lostTime)).To(BeFalse())
	})
})
