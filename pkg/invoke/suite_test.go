package invoke_test

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

	"github.com/hawser-cni/plugins/pkg/invoke"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// parentEnv makes the test binary a plugin that runs the delegate in this
// directory.
const parentEnv = "INVOKE_TEST_PARENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentEnv); dir != "" {
		r := invoke.Runner{Path: dir, Env: os.Environ(), Stderr: os.Stderr}
		_, err := run(context.Background(), r, "ipam", nil)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	nstest.Main(m)
}

func TestInvoke(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "pkg/invoke")
}

// install writes a shell script as an executable plugin.
func install(dir, name, script string) string {
	GinkgoHelper()
	file := filepath.Join(dir, name)
	Expect(os.WriteFile(file+".new", []byte("#!/bin/sh\n"+script+"\n"), 0o755)).To(Succeed())
	Expect(os.Rename(file+".new", file)).To(Succeed())
	return file
}

// runner finds the script as plugin "ipam".
func runner(script string) (invoke.Runner, *log) {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	install(dir, "ipam", script)
	stderr := &log{}
	env := []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=DEL"}
	return invoke.Runner{Path: dir, Env: env, Stderr: stderr}, stderr
}

// run starts the plugin for ADD and waits for its answer.
func run(ctx context.Context, r invoke.Runner, name string, conf []byte) ([]byte, error) {
	d, err := r.Start(ctx, name, "ADD", conf)
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
