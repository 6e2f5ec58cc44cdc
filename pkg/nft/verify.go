package nft

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hawser-cni/plugins/pkg/netlink"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Verify compares what all attachments share with what the kernel has. Its error joins the differences
// and matches ErrDrift. Rules that others put between ours are no
// difference.
func (c *Conn) Verify(l Layout) error {
	var drift []error
	for _, chain := range l.Chains {
		differs := func(format string, args ...any) {
			drift = append(drift, fmt.Errorf("nftables table %q, chain %q: %w: %s", l.Table, chain.Name, ErrDrift,
				fmt.Sprintf(format, args...)))
		}
		there, err := c.Chain(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if there == nil {
			differs("the chain is missing")
			continue
		}
		if (chain.Hook == nil) != (there.Hook == nil) || chain.Hook != nil && *chain.Hook != *there.Hook {
			differs("the chain has another hook, %+v instead of %+v", there.Hook, chain.Hook)
		}
		live, err := c.Rules(l.Table, chain.Name)
		if err != nil {
			return err
		}
		if i := missingRule(chain.compile(l.Table.Family), live); i >= 0 {
			differs("rule %q is missing", chain.Rules[i])
		}
	}
	return errors.Join(drift...)
}

// Probe says whether the kernel can hold the layout: it has the layout, or accepts it in a batch that is
// not kept. The error matches ErrUnsupported when the kernel cannot. It is an error, too, when Update
// could not make its lock's file.
func (c *Conn) Probe(l Layout) error {
	if err := statefile.Writable(filepath.Dir(cmp.Or(c.Lock, DefaultLock))); err != nil {
		return err
	}
	if err := c.Verify(l); !errors.Is(err, ErrDrift) {
		return err
	}
	tx := &Tx{Conn: c}
	if lacking, err := tx.Ensure(l); err != nil || !lacking {
		return err
	}
	return lasting(c.batch(tx.msgs, false))
}

// compile returns the expressions of each rule.
func (chain Chain) compile(family Family) [][]expression {
	out := make([][]expression, len(chain.Rules))
	for i, r := range chain.Rules {
		out[i] = r.compile(family)
	}
	return out
}

// runs says whether the live rule does exactly this.
func (r LiveRule) runs(want []expression) bool {
	i := 0
	for _, raw := range netlink.Attributes(r.exprs) {
		if i == len(want) || !want[i].same(raw) {
			return false
		}
		i++
	}
	return i == len(want)
}

// missingRule is the index of the first of the wanted rules that the live ones do not have in this
// order, or -1.
func missingRule(want [][]expression, live []LiveRule) int {
	i := 0
	for _, r := range live {
		if i < len(want) && r.runs(want[i]) {
			i++
		}
	}
	if i == len(want) {
		return -1
	}
	return i
}
