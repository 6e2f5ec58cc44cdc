package lifecycle_test

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestLifecycle(t *testing.T) { nstest.RunSpecs(t, "lifecycle: the plugins as runtimes drive them") }
