package tool

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// printer is the writer of all output and all errors of the tool. Any part of a text may come from another program or a
// tenant, so the printer quotes everything. Each call of Write must contain only complete characters.
type printer struct {
	file   *os.File
	colors map[string]string // escape sequences of severities at the beginning of a line
}

func (p *printer) Write(data []byte) (n int, err error) {
	text := "\n" + quote(string(data))
	for severity, color := range p.colors {
		text = strings.ReplaceAll(text, "\n"+severity+" ", "\n"+color+severity+"\x1b[0m ")
	}
	if n, err = io.WriteString(p.file, text[1:]); err == nil {
		n = len(data)
	}
	return min(n, len(data)), err
}

// quote replaces characters that a terminal does not print, except newlines and tabs, with JSON escapes. Among them are
// control characters, which begin escape sequences, and characters that change the direction of text. In JSON, such
// characters occur only in strings, so quoted JSON has the same meaning. A byte that is not valid UTF-8 is written like
// the code point with its value.
func quote(text string) string {
	var b strings.Builder
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		isByte := r == utf8.RuneError && size == 1
		if isByte {
			r = rune(text[i])
		}
		switch {
		case !isByte && (r == '\n' || r == '\t' || strconv.IsPrint(r)):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// show prints a command's findings as JSON, in which a nil list is [], or as text.
func (s *session) show(found any, text func(table)) error {
	if !s.json {
		var out bytes.Buffer // tabwriter makes a separate write for each cell
		t := table{tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)}
		text(t)
		_ = t.Flush() // a buffer returns no error
		_, err := s.out.Write(out.Bytes())
		return err
	}
	if list := reflect.ValueOf(found); list.Kind() == reflect.Slice && list.IsNil() {
		found = []any{}
	}
	e := json.NewEncoder(s.out)
	e.SetIndent("", "  ")
	return e.Encode(found)
}

// table is a text in columns.
type table struct{ *tabwriter.Writer }

// row writes a line of cells, which may contain other programs' text.
func (t table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = plain(cell)
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
}

func (t table) line(format string, args ...any) { t.row(fmt.Sprintf(format, args...)) }

// plain returns text from another program as a cell. All lines after the first are indented.
func plain(text string) string {
	return strings.NewReplacer("\t", " ", "\n", "\n\t").Replace(quote(strings.TrimRight(text, " \t\r\n")))
}

// oneLine returns text from another program on one line.
func oneLine(text string) string { return strings.ReplaceAll(plain(text), "\n\t", "; ") }

// color makes the printer color severities if standard output is a terminal and NO_COLOR is not set.
func (s *session) color() {
	p, isPrinter := s.out.root.OutOrStdout().(*printer)
	forbids := func(v string) bool { return strings.HasPrefix(v, "NO_COLOR=") && v != "NO_COLOR=" }
	if !isPrinter || slices.ContainsFunc(s.Env, forbids) {
		return
	}
	if _, err := unix.IoctlGetTermios(int(p.file.Fd()), unix.TCGETS); err == nil {
		p.colors = map[string]string{broken: "\x1b[31m", doubtful: "\x1b[33m"}
	}
}

func (s *session) finding(t table, severity, text, advice string) {
	s.color()
	fmt.Fprintf(t, "%s %s\n", severity, oneLine(text))
	if advice != "" {
		fmt.Fprintf(t, "    %s\n", oneLine(advice))
	}
}

// nameOf returns the pod or, without one, the beginning of the container's ID, as runtimes show it.
func nameOf(pod, container string) string { return cmp.Or(pod, container[:min(len(container), 13)]) }

// formatTime formats a time in the node's time zone; empty if the time is unknown.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}
