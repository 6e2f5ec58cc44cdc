package tool

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// show writes what a command found: as JSON, in which a list that is nil is [], or as a table.
func (s *session) show(found any, text func(table)) error {
	if !s.json {
		out := bufio.NewWriter(s.out) // tabwriter writes each cell by itself
		t := table{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
		text(t)
		return cmp.Or(t.Flush(), out.Flush())
	}
	if list := reflect.ValueOf(found); list.Kind() == reflect.Slice && list.IsNil() {
		found = []any{}
	}
	e := json.NewEncoder(s.out)
	e.SetIndent("", "  ")
	return e.Encode(found)
}

// table is a text in columns. A line without columns stands for itself.
type table struct{ *tabwriter.Writer }

// row writes a line, in which others may have written cells.
func (t table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = plain(cell)
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
}

// line writes a line that is no row.
func (t table) line(format string, args ...any) { t.row(fmt.Sprintf(format, args...)) }

// plain escapes the control characters of a text that others wrote; its lines stay lines, indented.
func plain(text string) string {
	var b strings.Builder
	for _, r := range strings.TrimRight(text, " \t\r\n") {
		switch {
		case r == '\n':
			b.WriteString("\n\t")
		case r == '\t':
			b.WriteByte(' ')
		case r < ' ' || r >= 0x7f && r < 0xa0:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// oneLine is a text of others in a line of ours.
func oneLine(text string) string { return strings.ReplaceAll(plain(text), "\n\t", "; ") }

// coloured is a severity in its colour, on a terminal where NO_COLOR does not forbid it.
func (s *session) coloured(severity string) string {
	file, isFile := s.out.root.OutOrStdout().(*os.File)
	forbids := func(v string) bool { return strings.HasPrefix(v, "NO_COLOR=") && v != "NO_COLOR=" }
	if !isFile || slices.ContainsFunc(s.Env, forbids) {
		return severity
	}
	if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err != nil {
		return severity
	}
	return map[string]string{broken: "\x1b[31m", doubtful: "\x1b[33m"}[severity] + severity + "\x1b[0m"
}

// finding prints what is wrong somewhere, and what to do.
func (s *session) finding(t table, severity, text, advice string) {
	fmt.Fprintf(t, "%s %s\n", s.coloured(severity), oneLine(text))
	if advice != "" {
		fmt.Fprintf(t, "    %s\n", oneLine(advice))
	}
}

// nameOf is a pod, or as much of a container's ID as runtimes show.
func nameOf(pod, container string) string { return cmp.Or(pod, container[:min(len(container), 13)]) }

// moment is a time on the node's clock; empty where nobody knows it.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}
