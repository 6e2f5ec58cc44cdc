package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestFill(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"paragraph", "a b\nc d e f g", "a b c d e\nf g"},
		{"item", "- a b c d e\n- f", "- a b c d\n  e\n- f"},
		{"numbered item", "1. a b\n   c d e", "1. a b c d\n   e"},
		{"paragraph of an item", "- a\n\n  b\n  c d e f", "- a\n\n  b c d e\n  f"},
		{"code of an item", "- a\n\n      b\n      c\n\nd\ne", "- a\n\n      b\n      c\n\nd e"},
		{"code", "a\n\n    b\n    c", "a\n\n    b\n    c"},
		{"fence", "```\na\nb\n```\nc\nd", "```\na\nb\n```\nc d"},
		{"table", "| a |\n| b |", "| a |\n| b |"},
		{"heading", "# a\nb\nc", "# a\nb c"},
		{"comment", "<!-- a\nb -->\nc\nd", "<!-- a\nb -->\nc d"},
		{"code span", "a `b c d` e f", "a `b c d`\ne f"},
		{"link", "a [b c](d e) f", "a\n[b c](d e)\nf"},
		{"marker", "a b c d - e", "a b c d -\ne"},
	} {
		if got := fill(c.text, 10); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestFillAgain checks for all pages of the tree that fill finds the same paragraphs at any width.
func TestFillAgain(t *testing.T) {
	pages := 0
	err := filepath.WalkDir("../..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "vendor") {
			return filepath.SkipDir
		}
		if filepath.Ext(name) != ".md" {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		pages++
		filled := fill(string(text), width)
		if again := fill(fill(filled, 50), width); again != filled {
			t.Errorf("%s: filling at 50 columns and again at 100 changed the text", name)
		}
		return nil
	})
	if err != nil || pages < 30 {
		t.Error(pages, "pages:", err)
	}
}
