package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// originals are values from before an ADD. This is the reference plugin's
// backup file, which has the first five keys and ignores others; each key is
// there only when ADD was asked to change it.
type originals struct {
	MAC      string `json:"mac,omitempty"`
	Promisc  *bool  `json:"promisc,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	AllMulti *bool  `json:"allmulti,omitempty"`
	TxQLen   *int   `json:"txQLen,omitempty"`
	// Sysctls are in the order in which ADD wrote them.
	Sysctls pairs `json:"sysctl,omitempty"`
}

// encode writes the backup file, byte for byte as the reference plugin does
// where there are no sysctls.
func (o originals) encode() ([]byte, error) { return json.MarshalIndent(o, "", " ") }

// equal compares what would be written.
func (o originals) equal(other originals) bool {
	one, err := o.encode()
	two, otherErr := other.encode()
	return err == nil && otherErr == nil && bytes.Equal(one, two)
}

func decodeOriginals(data []byte) (o originals, err error) {
	if err := json.Unmarshal(data, &o); err != nil {
		return originals{}, fmt.Errorf("no backup: %w", err)
	}
	return o, nil
}

// fill takes from other what o does not have.
func (o *originals) fill(other originals) {
	o.fillLink(other)
	o.fillSysctls(other.Sysctls)
}

func (o *originals) fillLink(other originals) {
	if o.MAC == "" {
		o.MAC = other.MAC
	}
	if o.Promisc == nil {
		o.Promisc = other.Promisc
	}
	if o.MTU == 0 {
		o.MTU = other.MTU
	}
	if o.AllMulti == nil {
		o.AllMulti = other.AllMulti
	}
	if o.TxQLen == nil {
		o.TxQLen = other.TxQLen
	}
}

func (o *originals) fillSysctls(other pairs) {
	for _, p := range other {
		if _, ok := o.Sysctls.get(p.Key); !ok {
			o.Sysctls = append(o.Sysctls, p)
		}
	}
}

func (o originals) linkEmpty() bool {
	return o.MAC == "" && o.Promisc == nil && o.MTU == 0 && o.AllMulti == nil && o.TxQLen == nil
}

// handLink gives to what both have, of the interface's attributes, and keeps
// the rest: to's owner came later, so what o's found is now the value from
// before to's.
func (o *originals) handLink(to *originals) {
	if o.MAC != "" && to.MAC != "" {
		to.MAC, o.MAC = o.MAC, ""
	}
	if o.Promisc != nil && to.Promisc != nil {
		to.Promisc, o.Promisc = o.Promisc, nil
	}
	if o.MTU != 0 && to.MTU != 0 {
		to.MTU, o.MTU = o.MTU, 0
	}
	if o.AllMulti != nil && to.AllMulti != nil {
		to.AllMulti, o.AllMulti = o.AllMulti, nil
	}
	if o.TxQLen != nil && to.TxQLen != nil {
		to.TxQLen, o.TxQLen = o.TxQLen, nil
	}
}

// handSysctls is handLink for the sysctls.
func (o *originals) handSysctls(to *originals) {
	o.Sysctls = slices.DeleteFunc(slices.Clone(o.Sysctls), func(p pair) bool {
		i := slices.IndexFunc(to.Sysctls, func(q pair) bool { return q.Key == p.Key })
		if i < 0 {
			return false
		}
		to.Sysctls = slices.Clone(to.Sysctls)
		to.Sysctls[i].Value = p.Value
		return true
	})
}

// withoutLink drops what belongs to the interface: its attributes, and the
// sysctls that have its name.
func (o originals) withoutLink(ifName string) originals {
	return originals{Sysctls: slices.DeleteFunc(slices.Clone(o.Sysctls), func(p pair) bool {
		key, err := sysctl.Parse(p.Key)
		return err != nil || key.Has(ifName)
	})}
}
