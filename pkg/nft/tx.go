package nft

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Tx is what an Update plans: reads see the kernel as it is, changes are staged for one batch, in the
// order in which they are called.
type Tx struct {
	*Conn
	Attempt int // 1 at first, more when the plan runs again

	msgs []message
	sets uint32
}

// Add stages new elements. A key that is there already makes the batch fail, whatever its data.
func (tx *Tx) Add(t Table, set string, elems ...Element) {
	tx.msgs = append(tx.msgs, elementMessages(unix.NFT_MSG_NEWSETELEM, t, set, elems)...)
}

// Delete stages the deletion of elements by their keys. The kernel ignores whose they are: compare the
// comment of Get in the same plan.
func (tx *Tx) Delete(t Table, set string, elems ...Element) {
	tx.msgs = append(tx.msgs, elementMessages(unix.NFT_MSG_DELSETELEM, t, set, elems)...)
}

// DeleteChain stages the deletion of a chain with its rules. Whatever leads to it has to go before.
func (tx *Tx) DeleteChain(t Table, chain string) {
	tx.msgs = append(tx.msgs, chainRef(unix.NFT_MSG_DELCHAIN, t, chain))
}

// DeleteRule stages the deletion of one rule.
func (tx *Tx) DeleteRule(t Table, chain string, handle uint64) {
	tx.msgs = append(tx.msgs, delRule(t, chain, handle))
}

// Ensure stages what the kernel lacks of the layout. A missing chain is created exclusively, so that
// of several firsts, with the lock or without, one wins and the others plan again. A chain that has
// lost rules (nft flush table) gets its own rules anew, in order; rules of others in it stay. It says
// whether anything was lacking.
func (tx *Tx) Ensure(l Layout) (lacking bool, err error) {
	for _, chain := range l.Chains {
		lack, err := tx.compare(l.Table, chain)
		if err != nil {
			return lacking, err
		}
		if lack == nil {
			continue
		}
		if !lacking {
			lacking = true
			tx.create(l)
		}
		tx.refill(l.Table, chain, *lack)
	}
	return lacking, nil
}

// lack says what a chain lacks.
type lack struct {
	chain bool       // there is no such chain
	ours  []LiveRule // what is left of our rules
}

// compare returns nil for a chain that has all its rules, which costs one request.
func (tx *Tx) compare(t Table, chain Chain) (*lack, error) {
	live, err := tx.Rules(t, chain.Name)
	if err != nil {
		return nil, err
	}
	want := chain.compile(t.Family)
	if len(live) > 0 && missingRule(want, live) < 0 {
		return nil, nil
	}
	there, err := tx.Chain(t, chain.Name)
	if err != nil || there != nil && len(chain.Rules) == 0 {
		return nil, err
	}
	l := lack{chain: there == nil}
	for _, r := range live {
		if slices.ContainsFunc(want, r.runs) {
			l.ours = append(l.ours, r)
		}
	}
	return &l, nil
}

// create stages table and sets, which both may exist.
func (tx *Tx) create(l Layout) {
	tx.msgs = append(tx.msgs, newTable(l.Table, l.Comment))
	for _, s := range l.Sets {
		tx.sets++
		tx.msgs = append(tx.msgs, newSet(l.Table, s, tx.sets))
	}
}

// refill stages the chain if there is none, and its rules in place of those that are left of them.
func (tx *Tx) refill(t Table, chain Chain, l lack) {
	if l.chain {
		tx.msgs = append(tx.msgs, newChain(t, chain))
	}
	for _, r := range l.ours {
		tx.DeleteRule(t, chain.Name, r.Handle)
	}
	for _, r := range chain.Rules {
		tx.msgs = append(tx.msgs, newRule(t, chain.Name, r))
	}
}
