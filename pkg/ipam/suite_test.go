package ipam_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// parentEnv makes the test binary a plugin that runs the delegate in this
// directory.
const parentEnv = "IPAM_TEST_PARENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentEnv); dir != "" {
		_, err := run(context.Background(), &ipam.Client{Type: "ipam", Path: dir, Env: os.Environ(), Stderr: os.Stderr})
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	nstest.Main(m)
}

func TestIPAM(t *testing.T) { nstest.RunSpecs(t, "pkg/ipam") }

// install writes a shell script as an executable plugin.
func install(dir, name, script string) string {
	GinkgoHelper()
	file := filepath.Join(dir, name)
	Expect(os.WriteFile(file+".new", []byte("#!/bin/sh\n"+script+"\n"), 0o755)).To(Succeed())
	Expect(os.Rename(file+".new", file)).To(Succeed())
	return file
}

// client speaks to an IPAM plugin, called "ipam", that is this script.
func client(script string) (*ipam.Client, *log) {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	install(dir, "ipam", script)
	stderr := &log{}
	return &ipam.Client{Type: "ipam", Conf: []byte(`{"name": "net1"}`), Version: "0.3.1", Path: dir,
		Env: []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=DEL"}, Stderr: stderr}, stderr
}

// run starts the plugin for ADD and waits for its answer.
func run(ctx context.Context, c *ipam.Client) ([]byte, error) {
	d, err := c.Start(ctx, "ADD")
	if err != nil {
		return nil, err
	}
	return d.Wait(ctx)
}

// log is a standard error that can be looked at while it is written.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
