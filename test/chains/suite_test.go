package chains_test

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestChains(t *testing.T) { nstest.RunSpecs(t, "chains: lists that nobody thought of") }
