package masq_test

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestMasq(t *testing.T) { nstest.RunSpecs(t, "masq") }
