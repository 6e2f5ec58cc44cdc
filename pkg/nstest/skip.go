package nstest

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// skip ends the spec; [watchSkips] decides what that means.
func skip(what, why string) {
	ginkgo.GinkgoHelper()
	if why == noMain {
		ginkgo.Fail(why)
	}
	ginkgo.Skip(fmt.Sprintf("needs %s: %s", what, why))
}

// watchSkips sees each spec after it ran. It logs the skipped ones, or fails them
// where a skip is not allowed: nothing is skipped in silence.
func watchSkips(report ginkgo.SpecReport) {
	reason := report.Failure.Message
	// A spec that was filtered out has no reason.
	if report.State.String() != "skipped" || reason == "" {
		return
	}
	switch {
	case os.Getenv("NSTEST_REQUIRE") == "all":
		ginkgo.Fail(reason + " (NSTEST_REQUIRE=all)")
	case required() && !slices.Contains(report.Labels(), "kernel"):
		ginkgo.Fail(reason + ` (NSTEST_REQUIRE=1, and the spec is not labelled "kernel")`)
	}
	logSkip(report.FullText(), reason)
}

// required tells whether what the kernel does not lack must be there.
func required() bool {
	strict := os.Getenv("NSTEST_REQUIRE")
	return strict != "" && strict != "0"
}

// logSkip adds a line to the file that the end of a run is told from. One write
// in append mode: several packages run at once.
func logSkip(spec, reason string) {
	path := os.Getenv("NSTEST_SKIPLOG")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	defer func() { _ = f.Close() }()
	reason = strings.ReplaceAll(reason, "\n", " ")
	gomega.Expect(fmt.Fprintf(f, "%s\t%s\t%s\n", os.Args[0], spec, reason)).Error().NotTo(gomega.HaveOccurred())
}
