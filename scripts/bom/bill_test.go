package main

import (
	"bytes"
	"strings"
	"testing"
)

// A rebuild's version contains a "+", which each format escapes differently.
func TestBillOfARebuild(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1")
	b, err := newBill("1.2.3+go1.26.9", []binary{{name: "bridge", main: "example.com/a"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var cyclonedx, spdx bytes.Buffer
	if err := b.cycloneDX(&cyclonedx); err != nil {
		t.Fatal(err)
	}
	if err := b.spdx(&spdx); err != nil {
		t.Fatal(err)
	}
	const purl = `"pkg:golang/example.com/a@v1.2.3%2Bgo1.26.9"`
	for text, in := range map[string]string{
		`"purl": ` + purl: cyclonedx.String(), `"referenceLocator": ` + purl: spdx.String(),
		`"documentNamespace": "https://example.com/a/spdx/hawser-cni-1.2.3%2Bgo1.26.9-` + b.number: spdx.String(),
	} {
		if !strings.Contains(in, text) {
			t.Errorf("no %s in %s", text, in)
		}
	}
}
