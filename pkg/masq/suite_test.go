package masq_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// loopEnv makes the test program add and delete one attachment until it is killed; it names the backend.
const loopEnv = "MASQ_TEST_LOOP"

func TestMain(m *testing.M) {
	if backend := os.Getenv(loopEnv); backend != "" {
		fmt.Fprintln(os.Stderr, loop(victim(ipt.Backend(backend))))
		os.Exit(1)
	}
	nstest.Main(m)
}

func TestMasq(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "masq")
}

// victim is the attachment of the loop.
func victim(b ipt.Backend) masq.Config {
	return config(b, "victim", "eth0", "10.1.0.2/24", "fd01::2/64")
}

func loop(c masq.Config) error {
	ctx := context.Background()
	nf := nft.New() // for all rounds: closing takes much longer than the rest, and is no interesting moment
	for {
		if err := masq.Add(ctx, nf, c); err != nil {
			return err
		}
		if err := masq.Del(ctx, nf, c); err != nil {
			return err
		}
	}
}
