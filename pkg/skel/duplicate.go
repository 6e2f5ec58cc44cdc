package skel

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// duplicatesMax bounds how many keys are reported to be there again.
const duplicatesMax = 100

// duplicates warns of keys that one object has more than once: decoders differ
// in which of them counts.
func (c *checker) duplicates() {
	d := duplicates{dec: json.NewDecoder(bytes.NewReader(c.doc)), left: duplicatesMax, found: func(key string) {
		if !c.refusedAs(key, "is there twice") {
			c.warn(key, "is there more than once", "leave one of them: which one counts is not the same everywhere")
		}
	}}
	d.value("")
}

// duplicates looks for keys that are there again.
type duplicates struct {
	dec   *json.Decoder
	left  int
	found func(key string)
}

// value reads the next value, which is at key. The document is known to be
// JSON.
func (d *duplicates) value(key string) {
	token, _ := d.dec.Token()
	switch token {
	case json.Delim('{'):
		times := map[string]int{}
		for d.dec.More() {
			token, _ := d.dec.Token()
			name, _ := token.(string)
			at := cni.KeyIn(key, name)
			if times[name]++; times[name] == 2 && d.left > 0 {
				d.left--
				d.found(at)
			}
			d.value(at)
		}
		_, _ = d.dec.Token() // its end
	case json.Delim('['):
		for i := 0; d.dec.More(); i++ {
			d.value(fmt.Sprintf("%s[%d]", key, i))
		}
		_, _ = d.dec.Token() // its end
	}
}
