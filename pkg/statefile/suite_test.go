package statefile_test

import (
	"os"
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerEnv); dir != "" {
		writeForEver(dir)
	}
	if path := os.Getenv(lockerEnv); path != "" {
		lockForEver(path)
	}
	nstest.Main(m)
}

func TestStatefile(t *testing.T) { nstest.RunSpecs(t, "pkg/statefile") }
