package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const page = "# portmap\n" + `
## Name

portmap - publish ports

## Keys

See [the keys](../../../docs/configuration.md#keys) and [bridge](../../main/bridge/README.md), or
[the tool](../../../cmd/hawser/README.md#why); [upstream](https://example.org/a).

| key | type | default | meaning |
| --- | --- | --- | --- |
| ` + "`snat`" + ` | boolean | true | masquerades, see [Masquerade](#on-the-host) |
| ` + "`conditionsV4`" + ` | list | | a \| b |

| reference | Hawser |
| --- | --- |
| nothing | something |

| option | variable | meaning |
| --- | --- | --- |
| ` + "`--to`" + ` | ` + "`TO`" + ` | directory |
| ` + "`--skip`" + ` | | names |

` + "```mermaid\nflowchart LR\n```\n\n" + "- An item:\n\n      ip link # [no](link)\n"

func TestConvert(t *testing.T) {
	got := convert(page, "plugins/meta/portmap/README.md", "hawser-portmap", "1.2.3", "2026-01-02")
	for _, want := range []string{
		"# HAWSER-PORTMAP 8 \"2026-01-02\" \"hawser 1.2.3\" \"Hawser\"\n\n## NAME\n\nhawser-portmap - publish ports\n",
		"See the keys (*/usr/share/doc/hawser-cni/docs/configuration.md*) and **hawser-bridge**(8), or\n",
		"the tool (see **hawser**(8)); upstream (https://example.org/a).\n",
		"`snat` (boolean; default: true)\n: masquerades, see Masquerade\n\n`conditionsV4` (list)\n: a | b\n",
		"*reference*\n: *Hawser*\n\nnothing\n: something\n",
		"`--to`\n: variable: `TO`  \nmeaning: directory\n\n`--skip`\n: meaning: names\n",
		"- An item:\n\n        ip link # [no](link)\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "mermaid") {
		t.Error("the diagram is in the page")
	}
}

func TestWrite(t *testing.T) {
	docs, out := t.TempDir(), t.TempDir()
	dir := filepath.Join(docs, "plugins/meta/portmap")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, plugin := range []string{"", "portmap"} { // there is no page of the tool
		if err := write(docs, out, plugin, "1.2.3", "2026-01-02"); err != nil {
			t.Fatal(err)
		}
	}
	written, err := filepath.Glob(out + "/*")
	if err != nil || len(written) != 1 {
		t.Fatalf("%v, %v", written, err)
	}
	troff, err := os.ReadFile(out + "/hawser-portmap.8")
	if err != nil || !strings.Contains(string(troff), "\n.SH NAME\n") {
		t.Errorf("%v, %s", err, troff)
	}
}
