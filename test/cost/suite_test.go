package cost_test

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestCost(t *testing.T) { nstest.RunSpecs(t, "cost: what a call asks of the kernel") }
