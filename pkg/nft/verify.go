package nft

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Verify compares what all attachments share with what the kernel has. Its error joins the differences
// and matches ErrDrift. Rules that others put between ours are none.
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
		if !reflect.DeepEqual(chain.Hook, there.Hook) {
			differs("the chain has another hook, %+v instead of %+v", there.Hook, chain.Hook)
		}
		live, err := c.Rules(l.Table, chain.Name)
		if err != nil {
			return err
		}
		exprs, err := chain.expressions(l.Table.Family)
		if err != nil {
			return err
		}
		if i := missingRule(exprs, live); i >= 0 {
			differs("rule %q is missing", chain.Rules[i])
		}
	}
	return errors.Join(drift...)
}

// Probe says whether the kernel can hold the layout: it has it, or accepts it in a batch that is not
// kept. The error matches ErrUnsupported when it cannot. That Update could not make its lock's file is
// an error, too.
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

// expressions are a rule's, as the kernel would give them back.
type expressions struct {
	family Family
	list   []expr.Any
	names  []string
}

func (chain Chain) expressions(family Family) ([]expressions, error) {
	out := make([]expressions, len(chain.Rules))
	for i, r := range chain.Rules {
		raw, err := r.marshal(family)
		if err != nil {
			return nil, err
		}
		out[i] = expressions{family: family}
		for j, e := range r.compile(family) {
			back, err := decodeLike(family, e, raw[j])
			if err != nil {
				return nil, fmt.Errorf("rule %q: %w", r, err)
			}
			out[i].list = append(out[i].list, back)
			out[i].names = append(out[i].names, cstring(attribute(raw[j], unix.NFTA_EXPR_NAME)))
		}
	}
	return out, nil
}

// decodeLike decodes an expression into another value of like's type. The kernel adds attributes of its
// own to what it gives back; going through the decoder leaves those that mean something. The decoder
// trusts lengths, so a panic of it is an error.
func decodeLike(family Family, like expr.Any, raw []byte) (e expr.Any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("expression %T: %v", like, v)
		}
	}()
	e, ok := reflect.New(reflect.TypeOf(like).Elem()).Interface().(expr.Any)
	if !ok {
		return nil, fmt.Errorf("no expression: %T", like)
	}
	return e, expr.Unmarshal(byte(family), attribute(raw, unix.NFTA_EXPR_DATA), e)
}

// same says whether the live rule does exactly this.
func (x expressions) same(r LiveRule) bool {
	i := 0
	for _, raw := range attributes(r.exprs) {
		if i == len(x.list) || cstring(attribute(raw, unix.NFTA_EXPR_NAME)) != x.names[i] {
			return false
		}
		live, err := decodeLike(x.family, x.list[i], raw)
		if err != nil || !reflect.DeepEqual(live, x.list[i]) {
			return false
		}
		i++
	}
	return i == len(x.list)
}

// missingRule is the index of the first of the wanted rules that the live ones do not have in this
// order, or -1.
func missingRule(want []expressions, live []LiveRule) int {
	i := 0
	for _, r := range live {
		if i < len(want) && want[i].same(r) {
			i++
		}
	}
	if i == len(want) {
		return -1
	}
	return i
}
