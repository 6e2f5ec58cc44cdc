package sysctl_test

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestSysctl(t *testing.T) { nstest.RunSpecs(t, "sysctl") }
