package skel_test

import (
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("VERSION", func() {
	const all = `"supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}` + "\n"

	DescribeTable("answers in the version that it was asked in, whatever else is there", Label("version-verb"), func(
		conf, version string,
	) {
		for _, r := range []request{
			{command: "VERSION", conf: conf},
			{command: "VERSION", conf: conf, id: "../x", ifname: "a/b", netns: "dummy"},
		} {
			Expect(r.run(forbidden())).To(Equal(answer{stdout: `{"cniVersion":"` + version + `",` + all}))
		}
	},
		Entry("one", `{"cniVersion": "0.4.0"}`, "0.4.0"),
		Entry("in any case", `{"CNIVersion": "0.3.1"}`, "0.3.1"),
		Entry("one that we do not speak", `{"cniVersion": "9.9.9"}`, "9.9.9"),
		Entry("a whole configuration", `{"name": "../x", "type": 5, "cniVersion": "1.0.0", "prevResult": 5}`, "1.0.0"),
		Entry("with more after it", `{"cniVersion": "1.0.0"} x`, "1.0.0"),
		Entry("none", `{}`, "1.1.0"), Entry("an empty one", `{"cniVersion": ""}`, "1.1.0"), Entry("null", `null`,
			"1.1.0"),
		Entry("nothing", ``, "1.1.0"), Entry("text", `hello`, "1.1.0"), Entry("a cut", `{"cniVersion": "1.0.0"`,
			"1.1.0"),
		Entry("of another type", `{"cniVersion": 1}`, "1.1.0"), Entry("a list", `[]`, "1.1.0"),
	)

	It("does not wait for the end of its input", func() {
		r, w, err := os.Pipe()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Close)
		Expect(w.WriteString(`{"cniVersion": "0.4.0"}`)).To(BeNumerically(">", 0))
		Expect(request{command: "VERSION", stdin: r}.run(forbidden()).document()).To(HaveKeyWithValue("cniVersion",
			"0.4.0"))
	})

	It("answers although nothing comes", func() {
		r, w, err := os.Pipe()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Close)
		refused := make(chan int, 1)
		go func() { refused <- request{command: "add", stdin: r}.run(forbidden()).code }()
		Expect(request{command: "VERSION", stdin: r}.run(forbidden()).document()).To(HaveKeyWithValue("cniVersion",
			"1.1.0"))
		Eventually(refused).Should(Receive(Equal(1)))
	})
})
