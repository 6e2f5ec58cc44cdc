// Command mdwrap fills the paragraphs and list items of Markdown files at 100 columns.
//
//	mdwrap FILE...       list the files that are not filled; the status is 1 if there are any
//	mdwrap -w FILE...    fill them
//
// Code, tables, headings, quotes and comments are left as they are. Code spans and links are never broken, so a line
// with one of them may be longer.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"
)

const width = 100

func main() {
	write := flag.Bool("w", false, "write the files instead of listing them")
	flag.Parse()
	status := 0
	for _, name := range flag.Args() {
		text, err := os.ReadFile(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, "mdwrap:", err)
			os.Exit(2)
		}
		filled := fill(string(text), width)
		switch {
		case filled == string(text):
		case !*write:
			fmt.Println(name)
			status = 1
		default:
			if err := os.WriteFile(name, []byte(filled), 0o644); err != nil {
				fmt.Fprintln(os.Stderr, "mdwrap:", err)
				os.Exit(2)
			}
		}
	}
	os.Exit(status)
}

var (
	fence  = regexp.MustCompile("^ *(```|~~~)")
	item   = regexp.MustCompile(`^( *)([-*+]|\d+\.) +`)
	marker = regexp.MustCompile(`^([-+*#>|]|#+|\d+[.)])$`) // begins a block if it is at the start of a line
	atom   = regexp.MustCompile("(?:`[^`]*`|\\[[^\\]]*\\]\\([^)]*\\)|[^ ])+")
)

// fill returns text with its paragraphs and list items filled at width columns.
func fill(text string, width int) string {
	var out []string
	p := paragraph{}
	end := func() { out, p = append(out, p.lines(width)...), paragraph{} }
	inFence, inComment, wasBlank, indent := false, false, true, 0 // indent is where the text of the list item begins
	for line := range strings.SplitSeq(text, "\n") {
		own := len(line) - len(strings.TrimLeft(line, " "))
		isBlank := own == len(line)
		if !isBlank && wasBlank && own < indent && item.FindString(line) == "" {
			indent = 0
		}
		isCode := p.words == nil && wasBlank && own >= indent+4 && item.FindString(line) == "" || own >= indent+6
		switch m := item.FindStringSubmatch(line); {
		case fence.MatchString(line):
			end()
			inFence = !inFence
			out = append(out, line)
		case inFence || inComment || isBlank || isCode || isVerbatim(line):
			end()
			inComment = !inFence && (inComment || strings.Contains(line, "<!--")) && !strings.Contains(line, "-->")
			out = append(out, line)
		case m != nil:
			end()
			indent = len(m[0])
			p = paragraph{first: m[0], rest: strings.Repeat(" ", indent), words: atom.FindAllString(line[indent:], -1)}
		default:
			if p.words == nil {
				p = paragraph{first: line[:own], rest: line[:own]}
			}
			p.words = append(p.words, atom.FindAllString(strings.TrimSpace(line), -1)...)
		}
		wasBlank = isBlank || isCode && wasBlank
	}
	end()
	return strings.Join(out, "\n")
}

// isVerbatim reports whether a line is never part of a paragraph.
func isVerbatim(line string) bool {
	trimmed := strings.TrimLeft(line, " ")
	return trimmed[0] == '|' || trimmed[0] == '#' || trimmed[0] == '>' || strings.HasPrefix(trimmed, "<!--") ||
		strings.HasPrefix(trimmed, "---")
}

// paragraph is a paragraph or a list item. A line break can only be between words.
type paragraph struct {
	first, rest string // prefixes of the first line and of the other lines
	words       []string
}

func (p paragraph) lines(width int) (lines []string) {
	line := p.first
	for i, word := range p.words {
		fits := utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width
		switch {
		case i == 0:
			line += word
		case fits || marker.MatchString(word):
			line += " " + word
		default:
			lines = append(lines, line)
			line = p.rest + word
		}
	}
	if p.words == nil {
		return nil
	}
	return append(lines, line)
}
