// Package runtimes_test runs container runtimes on throw-away hosts, with our
// plugins as the only ones. Scripts/test-runtimes.sh installs the runtimes. Each
// spec needs real root, and cgroups that it can write.
package runtimes_test

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestRuntimes(t *testing.T) { nstest.RunSpecs(t, "runtimes: real runtimes with our plugins") }
