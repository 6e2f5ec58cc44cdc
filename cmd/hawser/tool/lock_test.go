package tool

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestTool(t *testing.T) { nstest.RunSpecs(t, "the tool") }

var _ = DescribeTable("a directory that another installation has", Label("locks"), func(verb string) {
	dir := GinkgoT().TempDir()
	Expect(os.Mkdir(filepath.Join(dir, formerDir), 0o700)).To(Succeed())
	nstest.NewHost().HoldLock(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	var said bytes.Buffer
	c, _ := rootCommand([]skel.Program{{Name: "bridge"}}, func(string) (string, bool) { return "", false }, nil)
	c.SetOut(&said)
	c.SetArgs([]string{verb, "--to", dir})
	failed := make(chan error, 1)
	go func() { failed <- c.ExecuteContext(ctx) }()
	var err error
	Eventually(failed).Should(Receive(&err))
	Expect(err).To(MatchError(MatchRegexp(`^nothing was changed: lock ` + dir +
		`: held by process [1-9]\d* \(\w+\); wait until it ends, then try again$`)))
	Expect(said.String()).To(BeEmpty())
	Expect(filepath.Glob(filepath.Join(dir, "*"))).To(ConsistOf(filepath.Join(dir, formerDir)))
}, Entry("is given up by an installation", "install"), Entry("is given up by an uninstallation", "uninstall"))
