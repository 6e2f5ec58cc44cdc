package tool

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
)

// TestJSON compares the fields of what --json writes with the man page, which has a star behind those that are left out
// when they are empty.
func TestJSON(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## JSON\n")
	section, _, _ = strings.Cut(section, "\n## ")
	attachment, rows, _ := strings.Cut(section, "| --- |")
	all := map[string]any{"why": failure{}, "explain": explanation{}, "doctor": finding{}, "check": problem{},
		"test": trial{}, "trace": traceStep{}, "gc": collection{}, "reapply": repair{}, "": node.Attachment{}}
	for command, v := range all {
		text := attachment
		if command != "" {
			text = regexp.MustCompile(`(?m)^\| ` + command + ` \|.*$`).FindString(rows)
		}
		for name, isLeftOut := range fieldsOf(reflect.TypeOf(v)) {
			star := map[bool]string{true: `\\\*`, false: `[^\\]`}[isLeftOut]
			if !regexp.MustCompile("`" + name + "`" + star).MatchString(text) {
				t.Errorf("%s: field %s, left out when empty %t, is not so in %q", command, name, isLeftOut, text)
			}
		}
	}
}

// fieldsOf are the names of a type's fields, and whether each is left out when it is empty. Attachments have their own.
func fieldsOf(of reflect.Type) map[string]bool {
	for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	names := map[string]bool{}
	if of.Kind() != reflect.Struct || of.String() == "time.Time" {
		return names
	}
	for field := range of.Fields() {
		tag, isNamed := field.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		if name != "" && name != "-" {
			names[name] = options != ""
		}
		isOwn := field.Type.String() == "[]*node.Attachment"
		if !isOwn && (isNamed && name != "-" || field.Anonymous) {
			for inner, isLeftOut := range fieldsOf(field.Type) {
				names[inner] = isLeftOut
			}
		}
	}
	return names
}
