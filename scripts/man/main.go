// Command man writes the man pages of a package from the README.md files of the tool and the plugins:
//
//	man -docs DIR -version VERSION -date DATE OUT [PLUGIN...]
//
// It writes hawser.8 and, for each plugin, hawser-PLUGIN.8 into OUT. DIR is the documentation as the package ships it.
// A page whose README.md is missing in DIR is skipped.
//
// go-md2man writes the troff. Because it would print narrow table columns and relative links, each page is converted
// first: a table row becomes an item of a definition list, and a link becomes the name of a man page or the path of an
// installed file. Diagrams are omitted.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
)

// installed is the directory into which packages install the documentation.
const installed = "/usr/share/doc/hawser-cni"

func main() {
	docs := flag.String("docs", ".", "directory with cmd/hawser/README.md and plugins/*/*/README.md")
	version := flag.String("version", "", "version in the footer")
	date := flag.String("date", "", "date in the footer")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	for _, plugin := range append([]string{""}, flag.Args()[1:]...) {
		if err := write(*docs, flag.Arg(0), plugin, *version, *date); err != nil {
			fmt.Fprintln(os.Stderr, "man:", err)
			os.Exit(1)
		}
	}
}

// write writes the page of a plugin into dir. An empty plugin selects the page of the tool.
func write(docs, dir, plugin, version, date string) error {
	name, pattern := "hawser", "cmd/hawser/README.md"
	if plugin != "" {
		name, pattern = "hawser-"+plugin, "plugins/*/"+plugin+"/README.md"
	}
	found, err := filepath.Glob(filepath.Join(docs, pattern))
	if err != nil || len(found) == 0 {
		return err
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		return err
	}
	page, err := filepath.Rel(docs, found[0])
	if err != nil {
		return err
	}
	troff := md2man.Render([]byte(convert(string(text), page, name, version, date)))
	return os.WriteFile(filepath.Join(dir, name+".8"), troff, 0o644)
}

var (
	mermaid  = regexp.MustCompile("(?ms)^```mermaid\n.*?^```\n\n?")
	code     = regexp.MustCompile("(?m)^ *```(?s:.*?)^ *```\n|(?:^    .*\n)+")
	indented = regexp.MustCompile(`(?m)^ +`)
	title    = regexp.MustCompile(`^# .*\n`)
	section  = regexp.MustCompile(`(?m)^## .*$`)
	link     = regexp.MustCompile(`(?s)\[([^\]\[]+)\]\(([^)]+)\)`)
	table    = regexp.MustCompile(`(?m)(^\|.*\n)+`)
	readme   = regexp.MustCompile(`(?:^|/)([\w-]+)/README\.md(?:#.*)?$`)
)

// convert returns text in the Markdown that go-md2man expects. page is the path of the text in the repository.
func convert(text, page, name, version, date string) string {
	text = mermaid.ReplaceAllString(text, "")
	text = title.ReplaceAllLiteralString(text,
		fmt.Sprintf("# %s 8 %q %q \"Hawser\"\n", strings.ToUpper(name), date, "hawser "+version))
	plugin := strings.TrimPrefix(name, "hawser-")
	text = strings.Replace(text, "\n\n"+plugin+" - ", "\n\n"+name+" - ", 1)
	var out strings.Builder
	prose := func(s string) {
		s = section.ReplaceAllStringFunc(s, strings.ToUpper)
		s = link.ReplaceAllStringFunc(s, func(m string) string {
			parts := link.FindStringSubmatch(m)
			return reference(parts[1], parts[2], page)
		})
		out.WriteString(table.ReplaceAllStringFunc(s, list))
	}
	end := 0
	for _, at := range code.FindAllStringIndex(text, -1) {
		prose(text[end:at[0]])
		block := text[at[0]:at[1]]
		if strings.HasPrefix(block, "      ") { // code of a list item, which blackfriday requires to be indented by 8
			block = indented.ReplaceAllString(block, "  $0")
		}
		out.WriteString(block)
		end = at[1]
	}
	prose(text[end:])
	return out.String()
}

// reference returns the text that replaces a link with the given words and target.
func reference(words, target, page string) string {
	if strings.HasPrefix(target, "#") {
		return words
	}
	if strings.HasPrefix(target, "https://") {
		return words + " (" + target + ")"
	}
	if m := readme.FindStringSubmatch(target); m != nil && m[1] != "schema" {
		name := "hawser"
		if m[1] != name {
			name += "-" + m[1]
		}
		if words == m[1] || "hawser-"+words == name {
			return "**" + name + "**(8)"
		}
		return words + " (see **" + name + "**(8))"
	}
	file, _, _ := strings.Cut(target, "#")
	path := filepath.Join(installed, filepath.Dir(page), file)
	if strings.HasSuffix(path, "/"+strings.TrimPrefix(words, "/")) {
		return "*" + path + "*"
	}
	return words + " (*" + path + "*)"
}

// list returns the rows of a table as a definition list, in which the first cell is the term. In a table of keys,
// the term includes type and default. In other tables, the head becomes an item, or the text before each cell if a
// row has more than two cells.
func list(table string) string {
	lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
	if len(lines) < 3 {
		return table
	}
	head := cells(lines[0])
	var out strings.Builder
	if len(head) == 2 {
		fmt.Fprintf(&out, "*%s*\n: *%s*\n\n", head[0], head[1])
	}
	for _, line := range lines[2:] {
		row := cells(line)
		term, rest := row[0], row[1:]
		var parts []string
		switch {
		case head[0] == "key" && len(row) >= 4:
			var about []string
			for i, prefix := range []string{"", "default: "} {
				if rest[i] != "" {
					about = append(about, prefix+rest[i])
				}
			}
			if len(about) > 0 {
				term += " (" + strings.Join(about, "; ") + ")"
			}
			parts = append(parts, rest[2:]...)
		case len(rest) == 1:
			parts = rest
		default:
			for i, cell := range rest {
				if cell != "" && i+1 < len(head) {
					parts = append(parts, head[i+1]+": "+cell)
				}
			}
		}
		fmt.Fprintf(&out, "%s\n: %s\n\n", term, strings.Join(parts, "  \n")) // two blanks: a line break
	}
	return out.String()
}

// cells returns the cells of a row.
func cells(line string) (list []string) {
	line = strings.ReplaceAll(strings.Trim(strings.TrimSpace(line), "|"), `\|`, "\x00")
	for cell := range strings.SplitSeq(line, "|") {
		list = append(list, strings.ReplaceAll(strings.TrimSpace(cell), "\x00", "|"))
	}
	return list
}
