package bridge

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

// spoofCheck drops frames that arrive at a port with a source address other than the container's MAC address. All ports
// share one rule and two sets: the ports that are checked, and the pairs of a port and the address that it may use.
type spoofCheck struct {
	Attachment cni.Attachment
	Port       string // the host end's name
	MAC        net.HardwareAddr
}

var spoofTable = nft.Table{Family: nft.Bridge, Name: nft.TableName}

const (
	spoofChain = "macspoof_v1"
	spoofPorts = "macspoof_ports_v1"
	spoofPairs = "macspoof_pairs_v1"
)

// spoofElements describes the elements of all attachments. The chain has the earliest of nft's standard priorities in
// the family bridge (dstnat).
func spoofElements() nft.Owned {
	return nft.Owned{Sets: []string{spoofPorts, spoofPairs}, Layout: nft.Layout{
		Table: spoofTable,
		Sets: []nft.Set{
			{Name: spoofPorts, Key: []nft.Type{nft.IfName}, Comment: "ports whose frames are checked"},
			{Name: spoofPairs, Key: []nft.Type{nft.IfName, nft.EtherAddr},
				Comment: "port . MAC address of its container"},
		},
		Chains: []nft.Chain{{
			Name:    spoofChain,
			Comment: "macspoofchk of containers",
			Hook:    &nft.Hook{Type: "filter", Point: nft.Prerouting, Priority: -300},
			Rules: []nft.Rule{{
				nft.InSet(spoofPorts, nft.IIFName),
				nft.NotInSet(spoofPairs, nft.IIFName, nft.EtherSaddr),
				nft.Drop(),
			}},
		}},
	}}
}

func (s spoofCheck) items() []nft.Item {
	port, mark := nft.IfNameKey(s.Port), s.Attachment.Mark()
	return []nft.Item{
		{Set: spoofPorts, Name: fmt.Sprintf("port %q", s.Port), Element: nft.Element{Key: port, Comment: mark}},
		{Set: spoofPairs, Name: fmt.Sprintf("port %q with address %s", s.Port, s.MAC),
			Element: nft.Element{Key: nft.Key(port, s.MAC), Comment: mark}},
	}
}

// add adds the elements of the check. If the sets already have elements for the port, add replaces them, because they
// belong to an earlier host end with that name, or to an ADD of this attachment that was killed.
func (s spoofCheck) add(ctx context.Context, nf *nft.Conn) error {
	everyMark := func(string) bool { return true }
	err := spoofElements().Update(ctx, nf, func(tx *nft.Tx) error {
		old, err := spoofElements().Live(nf, s.items()[:1], everyMark)
		if err == nil && len(old) > 0 {
			old, err = spoofElements().All(nf, everyMark)
		}
		if err != nil {
			return err
		}
		isOtherPort := func(it nft.Item) bool { return !bytes.HasPrefix(it.Key, nft.IfNameKey(s.Port)) }
		return errors.Join(tx.Remove(slices.DeleteFunc(old, isOtherPort), everyMark), tx.Put(s.items(), nil))
	})
	if errors.Is(err, nft.ErrUnsupported) {
		return cni.Errorf(cni.CodeUnsupportedField, "macspoofchk: true: %w", err)
	}
	return spoofError(err)
}

// verify returns an error if an element of the port or the shared rule is missing. It also accepts a complete check of
// the reference plugin, because Hawser may have replaced that plugin while the container was running.
func (s spoofCheck) verify(nf *nft.Conn) error {
	err := spoofElements().Verify(nf, s.items())
	if err != nil && isReferenceComplete(nf, s.Attachment) {
		return nil
	}
	return spoofError(err)
}

// existingMAC returns the address in the live check of the port, or nil.
func (s spoofCheck) existingMAC(nf *nft.Conn) (net.HardwareAddr, error) {
	pairs, port := spoofElements(), nft.IfNameKey(s.Port)
	pairs.Sets = []string{spoofPairs}
	all, err := pairs.All(nf, s.Attachment.Owns)
	for _, it := range all {
		if mac, ok := bytes.CutPrefix(it.Key, port); ok && it.Set == spoofPairs {
			return mac[:len(s.MAC)], nil
		}
	}
	return nil, err
}

// deleteSpoofCheck removes Hawser's check of the attachment and, unless again is set, the reference plugin's. It first
// reads only the elements for the possible names of the host end, because most containers have no check.
func deleteSpoofCheck(ctx context.Context, nf *nft.Conn, a cni.Attachment, again bool) error {
	var ports []nft.Item
	for _, name := range iface.HostNames(a) {
		ports = append(ports, nft.Item{Set: spoofPorts, Element: nft.Element{Key: nft.IfNameKey(name)}})
	}
	chain, err := nf.Chain(spoofTable, spoofChain)
	if chain != nil {
		var own []nft.Item
		if own, err = spoofElements().Live(nf, ports, a.Owns); len(own) > 0 {
			err = spoofElements().Sweep(ctx, nf, a.Owns)
		}
	}
	err = nft.IfSupported(err)
	if !again {
		err = errors.Join(err, removeReferenceSpoofCheck(ctx, nf, a))
	}
	return spoofError(err)
}

// collectSpoofChecks removes the checks of attachments that are not valid. It leaves the reference plugin's checks,
// because they do not name their network.
func collectSpoofChecks(ctx context.Context, nf *nft.Conn, valid cni.Set) error {
	chain, err := nf.Chain(spoofTable, spoofChain)
	if chain != nil {
		err = spoofElements().Sweep(ctx, nf, valid.IsGarbage)
	}
	return spoofError(nft.IfSupported(err))
}

// listSpoofChecks lists the port and the MAC address of each check.
func listSpoofChecks(nf *nft.Conn) ([]cni.Holding, error) {
	pairs := spoofElements()
	pairs.Sets = []string{spoofPairs}
	all, err := pairs.Holdings(nf, cni.HeldMAC, func(it nft.Item) string {
		size := len(nft.IfNameKey(""))
		port, _, _ := bytes.Cut(it.Key[:size], []byte{0})
		return fmt.Sprintf("%q . %s", port, net.HardwareAddr(it.Key[size:size+6]))
	})
	return all, spoofError(err)
}

func spoofError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("MAC spoof check: %w", err)
}
