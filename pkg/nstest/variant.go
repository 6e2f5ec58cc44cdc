package nstest

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/onsi/ginkgo/v2"
)

// UseVariant makes "iptables" and its kind the programs of a variant, "nft" or
// "legacy", until the end of the spec.
func UseVariant(variant string) {
	ginkgo.GinkgoHelper()
	Need("iptables-" + variant)
	dir := ginkgo.GinkgoT().TempDir()
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-restore", "-save"} {
			real, err := exec.LookPath(program + "-" + variant + suffix)
			if err == nil {
				err = os.Symlink(real, filepath.Join(dir, program+suffix))
			}
			if err != nil {
				ginkgo.Fail(err.Error())
			}
		}
	}
	ginkgo.GinkgoT().Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
