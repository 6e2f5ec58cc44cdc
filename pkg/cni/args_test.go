package cni_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
)

var _ = Describe("ParseArgs", func() {
	type values = map[string]string
	const containerd = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;" +
		"K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=1-2-3"

	DescribeTable("reads", func(args string, want values) {
		Expect(cni.ParseArgs(args, "IP", "MAC", "GATEWAY")).To(Equal(want))
	},
		Entry("nothing", "", values{}),
		Entry("one pair", "IP=10.0.0.5", values{"IP": "10.0.0.5"}),
		Entry("podman's", "MAC=0a:58:0a:f4:00:03;IP=10.0.0.5", values{"IP": "10.0.0.5", "MAC": "0a:58:0a:f4:00:03"}),
		Entry("containerd's", containerd, values{}),
		Entry("containerd's with one of ours", containerd+";IP=10.0.0.5", values{"IP": "10.0.0.5"}),
		Entry("IgnoreUnknown last", "FOO=BAR;IgnoreUnknown=true", values{}),
		Entry("IgnoreUnknown in any case", "ignoreunknown=TRUE;FOO=BAR", values{}),
		Entry("IgnoreUnknown off, and nothing unknown", "IgnoreUnknown=0;IP=x", values{"IP": "x"}),
		Entry("keys in lower case", "ip=10.0.0.5;mac=m", values{"IP": "10.0.0.5", "MAC": "m"}),
		Entry("a semicolon at the end", "IP=10.0.0.5;", values{"IP": "10.0.0.5"}),
		Entry("semicolons only", ";; ;", values{}),
		Entry("a value with =", "IP=a=b=", values{"IP": "a=b="}),
		Entry("an empty value", "IP=", values{"IP": ""}),
		Entry("a value with blanks, as it is", " IP = x ", values{"IP": " x "}),
		Entry("the last of two", "IP=a;ip=b", values{"IP": "b"}),
	)

	DescribeTable("refuses", func(args, message string) {
		_, err := cni.ParseArgs(args, "IP", "MAC")
		Expect(err).To(MatchError(message))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeEnvironment))
		Expect(err.Error()).NotTo(ContainSubstring("hunter2"))
	},
		Entry("an unknown key", "FOO=hunter2",
			"CNI_ARGS: unknown keys FOO (known: IP, MAC; IgnoreUnknown=1 accepts any)"),
		Entry("one that would do something to a terminal", "\x1b[31mX=hunter2",
			`CNI_ARGS: unknown keys "\x1b[31mX" (known: IP, MAC; IgnoreUnknown=1 accepts any)`),
		Entry("several, in order", "Z=hunter2;A=hunter2;IP=x;IgnoreUnknown=false",
			"CNI_ARGS: unknown keys A, Z (known: IP, MAC; IgnoreUnknown=1 accepts any)"),
		Entry("a pair without =", "IP=x;hunter2", "CNI_ARGS: pair 2 is not KEY=value"),
		Entry("the same, whatever is ignored", "IgnoreUnknown=1;hunter2", "CNI_ARGS: pair 2 is not KEY=value"),
		Entry("a pair without key", "=hunter2", "CNI_ARGS: pair 1 is not KEY=value"),
		Entry("another IgnoreUnknown", "IgnoreUnknown=1,PASSWORD=hunter2",
			"CNI_ARGS: IgnoreUnknown is not 0, 1, true or false"),
	)

	DescribeTable("of one key alone", func(args, want string) {
		Expect(cni.PairsOf(args, "MAC")).To(Equal(want))
	},
		Entry("nothing", "", ""),
		Entry("beside others, whatever their form", "IgnoreUnknown=no;K8S_POD_NAME=a;debug; mac =m=;=", " mac =m="),
		Entry("twice", "MAC=a;IP=b;MAC=c", "MAC=a;MAC=c"),
	)
})
