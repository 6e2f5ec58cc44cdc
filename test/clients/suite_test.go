// Package clients_test drives the plugins through libcni, which is below all runtimes, go-cni, which is what
// containerd and nerdctl call, and ocicni, which is what CRI-O calls.
package clients_test

import (
	"os"
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) {
	if standIn() {
		return
	}
	if library := os.Getenv(libraryEnv); library != "" {
		os.Exit(client(library))
	}
	nstest.Main(m)
}

func TestClients(t *testing.T) { nstest.RunSpecs(t, "clients: libcni, go-cni and ocicni") }
