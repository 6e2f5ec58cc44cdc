package tool

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = DescribeTable("a version is newer", Label("install"), func(a, b string, want bool) {
	Expect(newer(a, b)).To(Equal(want))
	if want {
		Expect(newer(b, a)).To(BeFalse())
	}
},
	Entry("by its number", "1.10.0", "1.9.0", true),
	Entry("than what comes before it", "1.0.0", "1.0.0-rc.1", true),
	Entry("by the Go that built it", "1.2.3+go1.26.10", "1.2.3+go1.26.9", true),
	Entry("by a rebuild", "1.2.3+go1.26.9", "1.2.3", true),
	Entry("of the next Go", "1.2.3+go1.27.0", "1.2.3+go1.26.9", true),
	Entry("by commits after its tag", "1.2.3+3.g123456789abc", "1.2.3", true),
	Entry("by more of them", "1.2.3+10.g123456789abc", "1.2.3+9.gabcdef012345.dirty", true),
	Entry("by commits after a rebuild", "1.2.3+go1.26.9.1.g123456789abc", "1.2.3+go1.26.9", true),
	Entry("of the next Go, than commits after a rebuild", "1.2.3+go1.26.10", "1.2.3+go1.26.9.1.gabcdef012345", true),
	Entry("but not by commits after an older number", "1.2.2+3.g123456789abc", "1.2.3", false),
	Entry("but not by the name of a commit", "1.2.3-dev+g123456789abc", "1.2.3-dev+gabcdef012345", false),
	Entry("than a build without one", "0.1.0", "unknown", true),
	Entry("but not without one", "", "1.2.3", false),
	Entry("and none is no newer than none", "", "unknown", false),
	Entry("but not by an older number with a newer Go", "1.2.2+go1.27.1", "1.2.3+go1.26.9", false),
	Entry("but not itself", "1.2.3+go1.26.9", "1.2.3+go1.26.9", false),
	Entry("of the reference, by its number", "v1.9.2", "v1.9.1", true))
