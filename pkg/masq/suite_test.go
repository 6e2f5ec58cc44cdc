package masq_test

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestMasq(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "masq")
}
