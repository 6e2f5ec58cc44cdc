package policy_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/policy"
)

// TestRootless runs itself as an ordinary user who is root in a user namespace. The directory of the administrator's
// networks, which the user may not read, is no error.
func TestRootless(t *testing.T) {
	const key = "POLICY_DIR_OF_ROOT"
	if dir := os.Getenv(key); dir != "" {
		if _, err := os.ReadDir(dir); !os.IsPermission(err) {
			t.Fatalf("read %s: %v", dir, err)
		}
		p := &policy.Policy{TrustedDirs: []string{dir}}
		err := p.Check([]byte(`{"cniVersion":"1.0.0","name":"own","type":"bridge"}`), policy.Call{Plugin: "bridge"})
		if err != nil && cni.AsError(err).Code == cni.CodeIO {
			t.Error(err)
		}
		return
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	id := []syscall.SysProcIDMap{{HostID: 65534, Size: 1}}
	c := exec.Command("/proc/self/exe", "-test.run=^TestRootless$")
	c.Env = append(os.Environ(), key+"="+dir)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: id, GidMappings: id,
		Credential: &syscall.Credential{NoSetGroups: true}}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
