// Package faults_test kills the plugins at each of their system calls, and makes
// each of them fail, and sees that nothing is lost or left behind.
package faults_test

import (
	"fmt"
	"os"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) {
	if program := os.Getenv(launchEnv); program != "" {
		fmt.Fprintln(os.Stderr, "launch:", launch(program))
		os.Exit(1)
	}
	nstest.Main(m)
}

var _ = It("a scenario is there of each plugin", func() {
	var have []string
	for _, s := range scenarios() {
		have = append(have, s.plugin())
	}
	Expect(have).To(ContainElements(nstest.Plugins()))
})

func TestFaults(t *testing.T) { nstest.RunSpecs(t, "faults: kills and errors at every system call") }
