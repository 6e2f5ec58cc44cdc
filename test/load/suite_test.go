// The specs of this directory run whole lists of plugins at random: many containers
// at once, and our plugins in turns with the reference's on one node. What is random
// follows from the seed that ginkgo prints, the same in each run: -ginkgo.seed is for another.
package load_test

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestLoad(t *testing.T) { nstest.RunSpecs(t, "the plugins under load") }
