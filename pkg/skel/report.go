package skel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// report is what --check-config says.
type report struct {
	Plugin   string    `json:"plugin"`
	Checked  []string  `json:"checked"` // this plugin's entries: plugins[0]; "" is the whole file
	Findings []finding `json:"findings"`

	unreadable bool
}

// valueMax bounds how much of a value is printed for people, in bytes.
const valueMax = 80

// finding is one thing to say about a configuration.
type finding struct {
	Level      level           `json:"level"`
	Code       uint            `json:"code,omitempty"` // of the error that ADD would be
	Key        string          `json:"key"`
	Value      json.RawMessage `json:"value,omitempty"` // as written
	Reason     string          `json:"reason"`
	Suggestion string          `json:"suggestion,omitempty"`

	said bool // the reason goes on after the value
}

type level string

const (
	levelError   level = "error"
	levelWarning level = "warning"
	levelNote    level = "note"
)

// report makes one of what the checker found. err says why the file could not
// be read.
func (c *checker) report(err error) *report {
	r := &report{Plugin: c.plugin.Name, Checked: []string{}, Findings: []finding{}, unreadable: err != nil}
	for _, e := range c.entries {
		r.Checked = append(r.Checked, strings.TrimSuffix(e.prefix, "."))
	}
	c.problems.Add(err)
	for _, p := range cni.ProblemsOf(c.problems.Err()) {
		f := c.finding(p)
		same := func(g finding) bool { return g.Key == f.Key && g.Reason == f.Reason }
		if !slices.ContainsFunc(r.Findings, same) { // each entry has the list's name
			r.Findings = append(r.Findings, f)
		}
	}
	r.Findings = append(r.Findings, c.more...)
	return r
}

// finding is an error.
func (c *checker) finding(p cni.Problem) finding {
	for _, e := range c.entries {
		if p.Key == e.prefix+"name" { // the runtime puts the list's there
			p.Key = "name"
		}
	}
	f := finding{Level: levelError, Code: p.Code, Key: p.Key, Value: quotable(p.Raw), Reason: p.Reason, Suggestion: p.Suggestion, said: p.Value != nil || p.Raw != nil}
	if p.Raw == nil {
		f.Value = quotable(c.value(p.Key))
	}
	if f.Suggestion == "" {
		f.Suggestion = c.meaning(p.Key)
	}
	return f
}

// quotable is a value on one line, without objects: what stands in them under
// keys that nobody reads may be a secret.
func quotable(v json.RawMessage) json.RawMessage {
	if len(v) > 0 && v[0] != '"' && bytes.ContainsRune(v, '{') && bytes.ContainsRune(v, '"') {
		return nil
	}
	var line bytes.Buffer
	if json.Compact(&line, v) != nil {
		return v
	}
	return line.Bytes()
}

// meaning is what a key means: this plugin's as --help has it, those of all
// configurations and of lists as the schemas do. It is empty where nobody says.
func (c *checker) meaning(at string) string {
	lists := []described{{"", reflect.TypeFor[wireList]()}}
	if i := strings.Index(at, "]."); strings.HasPrefix(at, "plugins[") && i > 0 {
		lists = append(lists, described{at[:i+2], reflect.TypeFor[wireEntry]()})
	} else {
		lists = append(lists, described{"", reflect.TypeFor[wireEntry]()})
	}
	for _, e := range c.entries {
		lists = append([]described{{e.prefix, reflect.TypeOf(c.plugin.Config)}}, lists...)
	}
	for _, l := range lists {
		rest, ok := strings.CutPrefix(at, l.prefix)
		for _, k := range keysOf(l.wire) {
			if ok && k.help != "" && strings.EqualFold(k.path, withoutIndexes(rest)) {
				return k.name + ": " + k.help
			}
		}
	}
	return ""
}

// described is a type that describes the keys of a configuration at prefix.
type described struct {
	prefix string
	wire   reflect.Type
}

// withoutIndexes makes ranges[][].subnet, as --help spells it, of
// ranges[0][1].subnet, and vlanTrunk of vlanTrunk[0].
func withoutIndexes(key string) string {
	var b strings.Builder
	inside := false
	for _, r := range key {
		if r == ']' {
			inside = false
		}
		if !inside {
			b.WriteRune(r)
		}
		if r == '[' {
			inside = true
		}
	}
	return strings.TrimRight(b.String(), "[]")
}

func (r *report) count(l level) (n int) {
	for _, f := range r.Findings {
		if f.Level == l {
			n++
		}
	}
	return n
}

func (r *report) status() int {
	switch {
	case r.unreadable:
		return confUnreadable
	case r.count(levelError) > 0:
		return confBad
	case len(r.Checked) == 0:
		return confOther
	}
	return confGood
}

// print writes the report in one piece.
func (r *report) print(w io.Writer, asJSON bool) error {
	var b bytes.Buffer
	if asJSON {
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "    ")
		if err := enc.Encode(r); err != nil {
			return err
		}
	} else {
		r.text(&b)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (r *report) text(b *bytes.Buffer) {
	for _, f := range r.Findings {
		line := f.valueText() + f.Reason
		if f.Key != "" {
			line = f.Key + ": " + line
		}
		fmt.Fprintf(b, "%s: %s\n", f.Level, printable(line))
		if f.Suggestion != "" {
			fmt.Fprintf(b, "    %s\n", printable(f.Suggestion))
		}
	}
	fmt.Fprintf(b, "%s: %s, %s", r.Plugin, plural(r.count(levelError), "error"), plural(r.count(levelWarning), "warning"))
	switch {
	case r.unreadable:
	case len(r.Checked) == 0:
		fmt.Fprintf(b, "; nothing of %s was there to be checked", r.Plugin)
	case r.Checked[0] != "":
		fmt.Fprintf(b, " in %s and the keys of the list", strings.Join(r.Checked, ", "))
	}
	b.WriteByte('\n')
}

// printable is a text that does nothing to a terminal.
func printable(text string) string {
	var b strings.Builder
	for _, r := range text {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// valueText is the value before a reason that goes on after it: an object or a
// list only where that is about it as a whole.
func (f finding) valueText() string {
	v := string(f.Value)
	switch {
	case v == "" || !f.said || strings.ContainsAny(v[:1], "{[") && !strings.HasPrefix(f.Reason, "is "):
		return ""
	case len(v) > valueMax:
		return v[:valueMax] + "... "
	}
	return v + " "
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
