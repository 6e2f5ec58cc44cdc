package nft_test

import (
	"testing"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestNft(t *testing.T) { nstest.RunSpecs(t, "nft") }
