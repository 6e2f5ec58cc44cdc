// The specs of this directory run the plugins, as programs, on hosts on which things are not as they should be.
package hostile_test

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestHostile(t *testing.T) { nstest.RunSpecs(t, "the plugins in a hostile environment") }
