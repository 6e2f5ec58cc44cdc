// Package masq gives the packets of an attachment the host's address as source when they leave the
// attachment's network: source NAT, on nftables or on iptables.
//
// The rule is the same on both: a packet whose source is one of the attachment's addresses, and whose
// destination is neither in the prefix of that address nor multicast nor excluded, is masqueraded.
//
// nftables is the default and needs no program. All attachments share a handful of rules; each has one
// map element per address, whose comment names the owner. With iptables the chains are those of the reference
// plugins, byte for byte, so that either suite can delete what the other one made.
//
// What belongs to an attachment is found again without its namespace, configuration or result: Del and
// GC look at both backends, and at what the reference plugins leave on either.
package masq

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// Config is what one attachment asks for.
type Config struct {
	Attachment cni.Attachment
	Backend    ipt.Backend
	// Link is the host's interface that the container's packets come from, or its VRF. Del is cheaper with it.
	Link string
	// Again says that the attachment may have rules from before, for another interface: Add removes them.
	Again bool
	// Addrs are the addresses of the container, with the length of their prefix. Del is cheaper with them.
	Addrs []netip.Prefix
	Special
	// Restores has Add restore rules on iptables only from the record that an earlier Add wrote.
	Restores bool
	// Warn tells people of another attachment's rules that hold for an address of this one. It also tells of rules that
	// Del cannot remove because a program is missing; a later Del or GC removes them. Without Warn that is an error.
	Warn func(format string, args ...any)
}

// Special is what an attachment asks for beyond the reference's rules. Del does not need it.
type Special struct {
	// Exclude are destinations, of either family, whose packets keep their source.
	Exclude []netip.Prefix `json:"exclude,omitempty"`
	// RandomFully has the kernel choose the source ports at random.
	RandomFully bool `json:"randomFully,omitempty"`
	// Ports are the first and the last source port of TCP and UDP; zero: any.
	Ports [2]uint16 `json:"ports,omitzero"`
}

// isSpecial says whether the rules differ from the reference's, with these destinations excluded.
func (s Special) isSpecial(exclude []netip.Prefix) bool {
	return len(exclude) > 0 || s.RandomFully || s.Ports != [2]uint16{}
}

// Add makes the attachment's rules. Where it fails Del removes what there is of them. It may be repeated. What
// another attachment has for an address on the same interface stays until that attachment ends.
func Add(ctx context.Context, nf *nft.Conn, c Config) error {
	if len(c.Addrs) == 0 {
		return nil
	}
	if c.Backend == ipt.IPTables {
		return addIPTables(ctx, nf, c)
	}
	err := addNFTables(ctx, nf, c)
	if c.Backend == ipt.Auto && errors.Is(err, nft.ErrUnsupported) {
		return ipt.Instead(addIPTables(ctx, nf, c), err)
	}
	return err
}

// ErrNoRecord is Add's error if Config.Restores is set and no record has the rules on iptables.
var ErrNoRecord = errors.New("no record of these rules")

// Restore adds the rules of attachments that another program may have flushed, on nftables and in one batch. It returns
// what was missing, by the attachment's mark. It skips an attachment that does not exist. If an attachment ended in the
// meantime, Restore removes its rules again; DelAgain removes them if DEL is later.
func Restore(ctx context.Context, nf *nft.Conn, all []Config, exists func(mark string) bool) (map[string]error, error) {
	var wanted []nft.Item
	isFormer, err := formerMarks(nf, all)
	if err != nil {
		return nil, err
	}
	of := map[string]Config{} // by chain
	for _, c := range all {
		if isFormer[c.Attachment.Mark()] && checkNFTables(nf, c) == nil {
			continue
		}
		for _, i := range c.items() {
			wanted, of[i.Element.Goto] = append(wanted, i), c
		}
	}
	o := Config{}.owned()
	o.Chain = func(name string) (nft.Chain, bool) { return of[name].chainNamed(name) }
	missing, err := o.Restore(ctx, nf, wanted, exists)
	for mark := range missing {
		if !exists(mark) {
			delete(missing, mark)
			err = errors.Join(err, o.Remove(ctx, nf, wanted, func(live string) bool { return live == mark }))
		}
	}
	if len(missing) > 0 {
		err = errors.Join(err, forgetUnanswered(all))
	}
	return missing, err
}

// forgetUnanswered deletes the flows from the addresses that nobody has answered: what began while there was no rule is
// never translated, however often it is sent again.
func forgetUnanswered(all []Config) error {
	isOurs := map[netip.Addr]bool{}
	for _, c := range all {
		for _, p := range c.Addrs {
			isOurs[p.Addr()] = true
		}
	}
	isLost := func(f nft.Flow) bool { return !f.Replied && isOurs[f.Source.Addr()] }
	var errs []error
	for _, f := range nft.Families() {
		for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			_, err := nft.DeleteFlows(f, proto, isLost)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Del removes whatever Add, or the reference plugins, made for the attachment, on either backend. It
// succeeds when there is nothing, and goes on after a failure.
func Del(ctx context.Context, nf *nft.Conn, c Config) error {
	return errors.Join(
		nft.IfSupported(delNFTables(ctx, nf, c)),
		nft.IfSupported(delReference(ctx, nf, c.Attachment)),
		delIPTables(ctx, nf, c),
	)
}

// DelAgain removes rules that Restore restored after Del while the interface still existed. DEL calls it when the
// interface is gone. If there are no such rules, it costs one request to the kernel.
func DelAgain(ctx context.Context, nf *nft.Conn, c Config) error {
	find := c.owned().All
	if known := c.items(); len(known) > 0 {
		find = func(nf *nft.Conn, matches func(string) bool) ([]nft.Item, error) {
			return c.owned().Live(nf, known, matches)
		}
	}
	found, err := find(nf, c.Attachment.Owns)
	if err == nil {
		err = c.owned().Remove(ctx, nf, found, c.Attachment.Owns)
	}
	return nft.IfSupported(err)
}

// Check compares the attachment's rules, and the shared ones, with the kernel's. Differences are code 101.
// Rules of the other backend or the reference plugins pass too: the node may have been upgraded under the container.
func Check(ctx context.Context, nf *nft.Conn, c Config) error {
	if len(c.Addrs) == 0 {
		return nil
	}
	check := func() error { return checkNFTables(nf, c) }
	other := func() error { return checkIPTables(ctx, nf, c) }
	if c.Backend == ipt.IPTables {
		check, other = other, check
	}
	err := check()
	if err == nil || other() == nil || !c.isSpecial(c.Exclude) && checkReference(nf, c) == nil {
		return nil
	}
	return err
}

// GC removes what attachments of the set's network left that are not in it, on either backend, the reference's too.
func GC(ctx context.Context, nf *nft.Conn, valid cni.Set) error {
	return errors.Join(
		nft.IfSupported(Config{}.owned().Sweep(ctx, nf, valid.Garbage)),
		nft.IfSupported(gcReference(ctx, nf, valid)),
		records().Locked(ctx, func(s *store) error { return gcIPTables(ctx, nf, valid, s) }),
	)
}

// Status says whether Add could work, without running a program.
func Status(_ context.Context, nf *nft.Conn, b ipt.Backend) error {
	if b == ipt.IPTables {
		return statusIPTables(nf)
	}
	err := nf.Probe(Config{}.owned().Layout)
	if b != ipt.Auto || !errors.Is(err, nft.ErrUnsupported) {
		return err
	}
	if other := statusIPTables(nf); other != nil {
		return errors.Join(err, other)
	}
	return nil
}
