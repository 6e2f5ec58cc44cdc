package sbr

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = It("is listed until DEL, and the list changes nothing", Label("kernel"), func() {
	w := NewWorld(Plugin())
	n := 1
	w.ExpectHeld(func(id, network string) (Call, []string) {
		n++
		a := w.AttachBehind(id, network, nil, Addrs(n)...)
		for _, h := range w.Holdings(a.As("DEL").Stdin()) {
			Expect(h.NetnsPath).To(Equal(a.As("DEL").Netns))
		}
		return a.As("DEL"), []string{
			fmt.Sprintf("routing: from 10.1.0.%d/32 lookup 100", n),
			fmt.Sprintf("routing: from 2001:db8:1::%d/128 lookup 101", n)}
	})
})
