// The specs of this directory do to the plugins, as programs on a host, what
// attackers have done to plugins like them. docs/reliability.md lists them.
package attack_test

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestAttack(t *testing.T) { nstest.RunSpecs(t, "attacks on the plugins") }
