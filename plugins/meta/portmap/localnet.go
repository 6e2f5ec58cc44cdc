package main

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

func localnetKey(link string) (sysctl.Key, error) {
	return sysctl.Net("ipv4", "conf", link, "route_localnet")
}

func readLocalnet(link string) (string, error) {
	key, err := localnetKey(link)
	if err != nil {
		return "", err
	}
	return key.Read()
}

// writeLocalnet sets whether packets between 127.0.0.0/8 and the link are
// routed. A link that is gone needs no taking back.
func writeLocalnet(link, value string) error {
	key, err := localnetKey(link)
	if err == nil {
		err = key.Write(value)
	}
	if value == "0" && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// localnetWas is what route_localnet of the attachment's link was before its
// first user: what the kernel says now, or with other users what they recorded.
// The attachment itself may have been one, before it died.
func (c *call) localnetWas(s *store, st *state, dead []*state) (string, error) {
	if st.Localnet == "" {
		return "", nil
	}
	for _, d := range dead {
		if d.Localnet == st.Localnet && d.LocalnetWas != "" {
			return d.LocalnetWas, nil
		}
	}
	for _, c := range s.ledger.claims {
		if !c.isLink(st.Localnet) || c.owner == ownerOf(st) {
			continue
		}
		other, err := s.record(c.owner)
		if err != nil {
			return "", err
		}
		if other != nil && other.Localnet == st.Localnet && other.LocalnetWas != "" {
			return other.LocalnetWas, nil
		}
	}
	return readLocalnet(st.Localnet)
}

// guardNFTables guards a link whose host ports are iptables' business.
func guardNFTables(ctx context.Context, nf *nft.Conn, st *state) error {
	return nf.Update(ctx, func(tx *nft.Tx) error {
		if _, err := tx.Ensure(guardLayout()); err != nil {
			return err
		}
		return guard(tx, st)
	})
}

// checkLocalnet looks whether 127.0.0.1 leads to the container, and whether
// containers are kept from it.
func checkLocalnet(ctx context.Context, nf *nft.Conn, link string) error {
	if link == "" {
		return nil
	}
	if err := checkLocalnetValue(link); err != nil {
		return err
	}
	err := nf.Verify(guardLayout())
	if errors.Is(err, nft.ErrUnsupported) {
		return checkGuardIPTables(ctx, link)
	}
	if err != nil && !errors.Is(err, nft.ErrDrift) {
		return err
	}
	if err != nil {
		return drift("%w", err)
	}
	live, err := nf.Get(table, localnetSet, nft.IfNameKey(link))
	if err == nil && live[0] == nil {
		return unguarded(link)
	}
	return err
}

// checkLocalnetValue looks whether 127.0.0.1 leads to the container. Without a
// link there is nothing to look at.
func checkLocalnetValue(link string) error {
	if link == "" {
		return nil
	}
	value, err := readLocalnet(link)
	if err != nil {
		return drift("interface %q: %w", link, err)
	}
	if value != "1" {
		return drift("interface %q: route_localnet is %s, so 127.0.0.1 leads to no container", link, value)
	}
	return nil
}

func checkGuardIPTables(ctx context.Context, link string) error {
	tool, err := ipt.Find(ctx, ipt.IPv4)
	if err != nil {
		return err
	}
	live, _, err := liveGuard(ctx, tool, link)
	if err == nil && len(live) < 2 {
		return unguarded(link)
	}
	return err
}

func unguarded(link string) error {
	return drift("interface %q: route_localnet is 1 and nothing keeps containers from the host's loopback", link)
}

// sweepGuards takes links that are gone out of the guard.
func sweepGuards(ctx context.Context, nf *nft.Conn, there func(link string) bool) error {
	live, err := nf.Elements(table, localnetSet)
	if err != nil {
		return err
	}
	for _, e := range live {
		link := linkOfKey(e.Key)
		if there(link) {
			continue
		}
		if err := nf.Update(ctx, func(tx *nft.Tx) error { return unguard(tx, link, "") }); err != nil {
			return err
		}
	}
	return nil
}

func linkOfKey(key []byte) string {
	for i, b := range key {
		if b == 0 {
			return string(key[:i])
		}
	}
	return string(key)
}

func enableLocalnet(st *state) error {
	if st.Localnet == "" {
		return nil
	}
	return writeLocalnet(st.Localnet, "1")
}

// guard keeps containers from the host's loopback before the link gets its
// route_localnet: in nftables, or on a kernel without it in iptables.
func (c *call) guard(ctx context.Context, st *state) error {
	if st.Localnet == "" {
		return nil
	}
	err := guardNFTables(ctx, c.nf, st)
	if errors.Is(err, nft.ErrUnsupported) {
		return guardIPTables(ctx, st)
	}
	return err
}

const rawTable = "raw"

// guardRules are the guard of one link in iptables.
func guardRules(link, was string) []ipt.Rule {
	var out []ipt.Rule
	for _, side := range []string{"-d", "-s"} {
		out = append(out, ipt.NewRule("PREROUTING", side, loopback4.String(), "-i", link,
			"-m", "comment", "--comment", localnetWas+was, "-j", "DROP"))
	}
	return out
}

// liveGuard are those of the guard's rules that there are.
func liveGuard(ctx context.Context, tool ipt.Tool, link string) (live []ipt.Rule, was string, err error) {
	all, err := tool.List(ctx, rawTable, "PREROUTING")
	for _, value := range []string{"0", "1"} {
		for _, r := range guardRules(link, value) {
			if slices.ContainsFunc(all, r.Equal) {
				live, was = append(live, r), value
			}
		}
	}
	return live, was, err
}

func guardIPTables(ctx context.Context, st *state) error {
	tool, err := ipt.Find(ctx, ipt.IPv4)
	if err != nil {
		return err
	}
	live, _, err := liveGuard(ctx, tool, st.Localnet)
	if err != nil || len(live) == 2 {
		return err
	}
	return tool.Restore(ctx, rawTable, appendAll(nil, guardRules(st.Localnet, st.LocalnetWas)))
}

// unguardIPTables is unguard on a kernel without nftables.
func unguardIPTables(ctx context.Context, link, recorded string) error {
	if link == "" {
		return nil
	}
	tool, err := ipt.Find(ctx, ipt.IPv4)
	if err != nil {
		return err
	}
	live, was, err := liveGuard(ctx, tool, link)
	if err != nil {
		return err
	}
	if len(live) == 0 {
		was = recorded
	}
	if was == "0" {
		if err := writeLocalnet(link, "0"); err != nil {
			return err
		}
	}
	if len(live) == 0 {
		return nil
	}
	var lines []string
	for _, r := range live {
		lines = append(lines, r.Delete())
	}
	return tool.Restore(ctx, rawTable, lines)
}
