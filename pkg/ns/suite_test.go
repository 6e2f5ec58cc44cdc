package ns_test

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestNS(t *testing.T) { nstest.RunSpecs(t, "ns") }
