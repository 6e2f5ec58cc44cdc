package nstest

import (
	"runtime"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// WithoutDAC runs fn as a root whom the modes of files bind: one without rights
// cannot be read.
func WithoutDAC(fn func()) {
	ginkgo.GinkgoHelper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	gomega.Expect(unix.Capget(&header, &all[0])).To(gomega.Succeed())
	less := all
	less[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	gomega.Expect(unix.Capset(&header, &less[0])).To(gomega.Succeed())
	defer func() { gomega.Expect(unix.Capset(&header, &all[0])).To(gomega.Succeed()) }()
	fn()
}
