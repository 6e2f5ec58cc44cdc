package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// spoofCheck drops the frames of a port that do not have the container's MAC address as source. All
// ports share one rule and two sets: which ports are checked, and which address each may use.
type spoofCheck struct {
	Attachment cni.Attachment
	Port       string // the host end's name
	MAC        net.HardwareAddr
}

var spoofTable = nft.Table{Family: nft.Bridge, Name: "hawser"}

const (
	spoofPorts = "macspoof_ports_v1"
	spoofPairs = "macspoof_pairs_v1"
)

// spoofLayout filters before anything else of the bridge looks at a frame.
func spoofLayout() nft.Layout {
	return nft.Layout{
		Table:   spoofTable,
		Comment: "Hawser CNI plugins",
		Sets: []nft.Set{
			{Name: spoofPorts, Key: []nft.Type{nft.IfName}, Comment: "ports whose frames are checked"},
			{Name: spoofPairs, Key: []nft.Type{nft.IfName, nft.EtherAddr}, Comment: "port . MAC address of its container"},
		},
		Chains: []nft.Chain{{
			Name:    "macspoof_v1",
			Comment: "macspoofchk of containers",
			Hook:    &nft.Hook{Type: "filter", Point: nft.Prerouting, Priority: -300},
			Rules: []nft.Rule{{
				nft.InSet(spoofPorts, nft.IIFName),
				nft.NotInSet(spoofPairs, nft.IIFName, nft.EtherSaddr),
				nft.Drop(),
			}},
		}},
	}
}

func (s spoofCheck) port() nft.Element {
	return nft.Element{Key: nft.IfNameKey(s.Port), Comment: s.Attachment.Mark()}
}

func (s spoofCheck) pair() nft.Element {
	return nft.Element{Key: nft.Key(nft.IfNameKey(s.Port), s.MAC), Comment: s.Attachment.Mark()}
}

// add makes the check. What is there for the port already is left from one that had its name before,
// or from an ADD of this attachment that was killed.
func (s spoofCheck) add(ctx context.Context, nf *nft.Conn) error {
	err := nf.Update(ctx, func(tx *nft.Tx) error {
		if _, err := tx.Ensure(spoofLayout()); err != nil {
			return err
		}
		old, err := tx.Get(spoofTable, spoofPorts, s.port().Key)
		if err != nil {
			return err
		}
		if old[0] != nil {
			samePort := func(e nft.Element) bool { return bytes.HasPrefix(e.Key, s.port().Key) }
			found, err := findSpoofElements(nf, samePort)
			if err != nil {
				return err
			}
			for set, elems := range found {
				tx.Delete(spoofTable, set, elems...)
			}
		}
		tx.Add(spoofTable, spoofPorts, s.port())
		tx.Add(spoofTable, spoofPairs, s.pair())
		return nil
	})
	if errors.Is(err, nft.ErrUnsupported) {
		return cni.Errorf(cni.CodeUnsupportedField, "macspoofchk: true: %w", err)
	}
	return spoofError(err)
}

// check compares the port's elements and the shared rule with the kernel's. A check that the
// reference made is as good: the node may have been upgraded under the container.
func (s spoofCheck) check(nf *nft.Conn) error {
	ours := s.checkOurs(nf)
	if ours == nil || s.referenceThere(nf) {
		return nil
	}
	return spoofError(ours)
}

func (s spoofCheck) checkOurs(nf *nft.Conn) error {
	errs := []error{nf.Verify(spoofLayout())}
	for set, want := range map[string]nft.Element{spoofPorts: s.port(), spoofPairs: s.pair()} {
		live, err := nf.Get(spoofTable, set, want.Key)
		switch {
		case err != nil:
			errs = append(errs, err)
		case live[0] == nil || !s.Attachment.Owns(live[0].Comment):
			errs = append(errs, fmt.Errorf("set %q: port %q with address %s is missing", set, s.Port, s.MAC))
		}
	}
	return errors.Join(errs...)
}

// referenceThere tells whether the reference's check is whole: a jump to the first chain, from there
// to the second, and what that one does with the frame.
func (s spoofCheck) referenceThere(nf *nft.Conn) bool {
	chains := referenceSpoofChains(s.Attachment)
	if len(chains[1]) > nft.NameMax {
		return false
	}
	way := []string{"PREROUTING", chains[0], chains[1]}
	for i, chain := range way[:2] {
		rules, err := nf.Rules(referenceSpoofTable, chain)
		if err != nil || !slices.ContainsFunc(rules, func(r nft.LiveRule) bool { return r.Target == way[i+1] }) {
			return false
		}
	}
	// One rule lets the address pass, the other drops the rest.
	rules, err := nf.Rules(referenceSpoofTable, way[2])
	return err == nil && len(rules) >= 2
}

// deleteSpoofCheck removes the attachment's check, ours or the reference's, without knowing the port.
func deleteSpoofCheck(ctx context.Context, nf *nft.Conn, a cni.Attachment) error {
	there, err := hasSpoofCheck(nf, a)
	if there {
		err = removeSpoofElements(ctx, nf, func(e nft.Element) bool { return a.Owns(e.Comment) })
	}
	return spoofError(errors.Join(err, removeReferenceSpoofCheck(ctx, nf, a)))
}

// hasSpoofCheck looks for the attachment at the names that its port may have: most containers are not
// checked, and those of others need not be looked at.
func hasSpoofCheck(nf *nft.Conn, a cni.Attachment) (bool, error) {
	there, err := nf.HasTable(spoofTable)
	if err != nil || !there {
		return false, nothingThere(err)
	}
	var keys [][]byte
	for _, name := range iface.HostNames(a) {
		keys = append(keys, nft.IfNameKey(name))
	}
	live, err := nf.Get(spoofTable, spoofPorts, keys...)
	return slices.ContainsFunc(live, func(e *nft.Element) bool { return e != nil && a.Owns(e.Comment) }), err
}

// collectSpoofChecks removes the checks of the network's attachments that are not valid. The
// reference's are left: they do not tell their network.
func collectSpoofChecks(ctx context.Context, nf *nft.Conn, valid cni.Set) error {
	there, err := nf.HasTable(spoofTable)
	if there {
		err = removeSpoofElements(ctx, nf, func(e nft.Element) bool { return valid.Garbage(e.Comment) })
	}
	return spoofError(nothingThere(err))
}

// spoofStatus says whether the kernel can do the check.
func spoofStatus(nf *nft.Conn) error { return nf.Probe(spoofLayout()) }

// removeSpoofElements looks at all elements, and only at what it found once it has the lock.
func removeSpoofElements(ctx context.Context, nf *nft.Conn, garbage func(nft.Element) bool) error {
	found, err := findSpoofElements(nf, garbage)
	if err != nil || len(found) == 0 {
		return err
	}
	return nf.Update(ctx, func(tx *nft.Tx) error {
		for set, elems := range found {
			var keys [][]byte
			for _, e := range elems {
				keys = append(keys, e.Key)
			}
			live, err := tx.Get(spoofTable, set, keys...)
			if err != nil {
				return err
			}
			for _, e := range live {
				if e != nil && garbage(*e) {
					tx.Delete(spoofTable, set, *e)
				}
			}
		}
		return nil
	})
}

// findSpoofElements are the elements of each set that are garbage.
func findSpoofElements(nf *nft.Conn, garbage func(nft.Element) bool) (map[string][]nft.Element, error) {
	found := map[string][]nft.Element{}
	for _, set := range []string{spoofPorts, spoofPairs} {
		live, err := nf.Elements(spoofTable, set)
		if err != nil {
			return nil, err
		}
		for _, e := range live {
			if garbage(e) {
				found[set] = append(found[set], e)
			}
		}
	}
	return found, nil
}

var referenceSpoofTable = nft.Table{Family: nft.Bridge, Name: "nat"}

func referenceSpoofChains(a cni.Attachment) []string {
	first := "cni-br-iface-" + a.ContainerID + "-" + a.IfName
	return []string{first, first + "-mac"}
}

// removeReferenceSpoofCheck removes what the reference made: a jump in PREROUTING with a comment that
// names container and interface, to a chain that jumps to another one.
func removeReferenceSpoofCheck(ctx context.Context, nf *nft.Conn, a cni.Attachment) error {
	table, name := referenceSpoofTable, a.ContainerID+"-"+a.IfName
	chains := referenceSpoofChains(a)
	if len(chains[1]) > nft.NameMax {
		return nil // no kernel has such a chain
	}
	there := false
	for _, chain := range chains {
		live, err := nf.Chain(table, chain)
		if err != nil {
			return nothingThere(err)
		}
		there = there || live != nil
	}
	if !there {
		return nil
	}
	return nf.Update(ctx, func(tx *nft.Tx) error {
		rules, err := tx.Rules(table, "PREROUTING")
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.Target == chains[0] || r.Comment == "macspoofchk-"+name {
				tx.DeleteRule(table, "PREROUTING", r.Handle)
			}
		}
		for _, chain := range chains {
			live, err := tx.Chain(table, chain)
			if err != nil {
				return err
			}
			if live != nil {
				tx.DeleteChain(table, chain)
			}
		}
		return nil
	})
}

// nothingThere is for removals: a kernel without nftables has nothing of ours in it.
func nothingThere(err error) error {
	if errors.Is(err, nft.ErrUnsupported) {
		return nil
	}
	return err
}

func spoofError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("MAC address check: %w", err)
}
