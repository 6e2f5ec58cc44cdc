package ipt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// Backend is where a plugin has its rules.
type Backend string

// The backends. Auto is the one that fits the kernel.
const (
	Auto     Backend = ""
	NFTables Backend = "nftables"
	IPTables Backend = "iptables"
)

// ParseBackend reads a key of the configuration; nil, for one that is absent or null, is Auto. Anything else than a
// backend is code 7.
func ParseBackend(key string, value *string) (Backend, error) {
	if value == nil {
		return Auto, nil
	}
	switch b := Backend(*value); b {
	case NFTables, IPTables:
		return b, nil
	}
	return Auto, cni.Refuse(key, *value, `is neither "nftables" nor "iptables"`).
		Suggest("leave it out for the one that fits")
}

// commentMax is how many bytes the match comment takes.
const commentMax = 255

// ContainerChain is the reference's chain of a container on a network: a prefix, which says of which plugin, and
// a hash. It has no room for the interface, so all of the container's interfaces on that network share it.
func ContainerChain(prefix, network, containerID string) string {
	return prefix + cni.Digest(network+containerID, chainNameMax-len(prefix))
}

// IsContainerChain says whether a name is one that ContainerChain makes with the prefix.
func IsContainerChain(prefix, name string) bool {
	hash, ok := strings.CutPrefix(name, prefix)
	return ok && len(name) == chainNameMax && strings.Trim(hash, "0123456789abcdef") == ""
}

// OwnerComment is the reference's comment of rules about a container on a network. One that iptables would cut is
// cut here, so that the rule is found again.
func OwnerComment(prefix, network, containerID string) string {
	c := fmt.Sprintf("%sname: %q id: %q", prefix, network, containerID)
	if len(c) > commentMax {
		c = c[:commentMax-3] + "..."
	}
	return c
}

// ParseOwner is the reverse of OwnerComment with any prefix, for comments that were not cut.
func ParseOwner(comment string) (network, containerID string, ok bool) {
	_, owner, _ := strings.Cut(comment, "name: ")
	n, err := fmt.Sscanf(owner, "%q id: %q", &network, &containerID)
	return network, containerID, n == 2 && err == nil
}

// Containers returns the containers of a network that have such chains in either variant, by the comments of the
// rules in these chains and of those that lead to them from c.From.
func (c Chain) Containers(ctx context.Context, nf *nft.Conn, prefix, network string) (ids []string, err error) {
	rules, err := c.Rules(ctx, nf, func(chain string) bool { return IsContainerChain(prefix, chain) })
	for _, r := range rules {
		name, id, ok := ParseOwner(r.Option("--comment"))
		if ok && name == network && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, err
}
