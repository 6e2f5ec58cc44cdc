package plugintest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// schemaBase is the published address of the schemas.
const schemaBase = "https://github.com/hawser-cni/plugins/raw/main/docs/schema/"

// ExpectSchema checks that docs/schema/NAME.json is this schema, which is given without its head. With UPDATE=1 in the
// environment, it first writes the file.
func ExpectSchema(name, description string, schema Object) {
	ginkgo.GinkgoHelper()
	doc := Merge(schema, Object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": schemaBase + name + ".json",
		"title": name, "description": description, "type": "object"})
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	gomega.Expect(enc.Encode(doc)).To(gomega.Succeed())
	file := filepath.Join(nstest.Root(), "docs", "schema", name+".json")
	if os.Getenv("UPDATE") == "1" {
		gomega.Expect(os.WriteFile(file, b.Bytes(), 0o644)).To(gomega.Succeed())
	}
	have, err := os.ReadFile(file)
	gomega.Expect(err).NotTo(gomega.HaveOccurred(), "make schema writes it")
	gomega.Expect(string(have)).To(gomega.Equal(b.String()), "make schema updates it")
}

// ExpectPluginSchema is ExpectSchema for a plugin, with the schema of its wire type and with rules about several keys.
func ExpectPluginSchema[C any](p skel.Plugin[C], rules ...Object) {
	ginkgo.GinkgoHelper()
	schema := SchemaOf(p.Keys)
	all := []any{Object{"$ref": "network.json#/$defs/entry"}}
	for _, r := range rules {
		all = append(all, r)
	}
	schema["allOf"] = all
	ExpectSchema(p.Name, p.About, schema)
}

// HasKey returns the rule that a key, or a path such as ipam.type, exists with a value that matches a schema.
func HasKey(path string, value Object) Object {
	name, rest, inner := strings.Cut(path, ".")
	if inner {
		value = HasKey(rest, value)
		value["type"] = "object"
	}
	return Object{"required": []string{name}, "properties": Object{name: value}}
}

// NotBoth returns the rule that at most one of two rules holds.
func NotBoth(a, b Object) Object { return Object{"not": Object{"allOf": []any{a, b}}} }

// SchemaOf returns the schema of a wire type from the tags of its fields:
//
//	json     the key
//	help     its description
//	default  the value that a missing key stands for, if any
//	schema   the parser's conditions for the value, in the words of [schemaWord]; "-" omits the key
//	each     the conditions for each element of a list
//
// null stands for a missing key, as in the decoder, unless the key is required.
func SchemaOf(wire any) Object { return objectSchema(reflect.TypeOf(wire)) }

func objectSchema(t reflect.Type) Object {
	properties, required := Object{}, []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous { // required keys of an embedded type are not required here
			for name, p := range objectSchema(f.Type)["properties"].(Object) {
				properties[name] = nullable(p.(Object))
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" || f.Tag.Get("schema") == "-" {
			continue
		}
		node := fieldSchema(f)
		if slices.Contains(strings.Fields(f.Tag.Get("schema")), "required") {
			required = append(required, name)
		} else {
			node = nullable(node)
		}
		properties[name] = node
	}
	o := Object{"type": "object", "properties": properties}
	if len(required) > 0 {
		o["required"] = required
	}
	return o
}

func fieldSchema(f reflect.StructField) Object {
	node := typeSchema(f.Type, f.Tag.Get("each"))
	if most := f.Tag.Get("most"); most != "" {
		node["maxItems"] = number(most)
	}
	for _, word := range strings.Fields(f.Tag.Get("schema")) {
		schemaWord(node, word)
	}
	if help := f.Tag.Get("help"); help != "" {
		node["description"] = help
	}
	if text, ok := f.Tag.Lookup("default"); ok {
		var value any
		if node["type"] == "string" || json.Unmarshal([]byte(text), &value) != nil {
			value = text
		}
		node["default"] = value
	}
	return node
}

func typeSchema(t reflect.Type, each string) Object {
	switch k := t.Kind(); {
	case t == reflect.TypeFor[json.RawMessage](), k == reflect.Interface:
		return Object{}
	case k == reflect.Pointer:
		return typeSchema(t.Elem(), each)
	case k == reflect.Struct:
		return objectSchema(t)
	case k == reflect.Map && t.Elem().Kind() == reflect.Interface:
		return Object{"type": "object", "maxProperties": cni.ListMax}
	case k == reflect.Map:
		return Object{"type": "object", "additionalProperties": nullable(typeSchema(t.Elem(), "")),
			"maxProperties": cni.ListMax}
	case k == reflect.Slice:
		return Object{"type": "array", "items": itemSchema(t.Elem(), each), "maxItems": cni.ListMax}
	case k == reflect.String:
		return Object{"type": "string", "maxLength": cni.TextMax}
	case k == reflect.Bool:
		return Object{"type": "boolean"}
	case k == reflect.Uint, k == reflect.Uint32:
		return Object{"type": "integer", "minimum": 0, "maximum": uint32(1<<32 - 1)}
	case k == reflect.Int, k == reflect.Int64:
		return Object{"type": "integer"}
	default:
		panic(fmt.Sprintf("no schema for %s", t))
	}
}

// itemSchema returns the schema of an element. null is the zero value, which the parser accepts if there are no
// conditions for an element.
func itemSchema(t reflect.Type, each string) Object {
	node := typeSchema(t, each)
	if t.Kind() == reflect.Slice { // the words apply to the innermost elements, of which each list needs one
		node["minItems"] = 1
		return node
	}
	if _, ok := node["required"]; !ok && each == "" {
		return nullable(node)
	}
	for _, word := range strings.Fields(each) {
		schemaWord(node, word)
	}
	return node
}

// nullable makes a schema accept null.
func nullable(node Object) Object {
	if kind, ok := node["type"].(string); ok {
		node["type"] = []string{kind, "null"}
	}
	if enum, ok := node["enum"].([]any); ok && !slices.Contains(enum, nil) {
		node["enum"] = append(enum, nil)
	}
	return node
}

// schemaWord adds one word of a tag:
//
//	required          the key must exist
//	set               null is refused
//	type=T            the type of a value that the decoder does not decode
//	min=N max=N       limits of a number
//	zero              0 is also accepted
//	nonempty          a list must have elements
//	enum=A|B          one of these
//	fold=A|B          one of these, in upper or lower case
//	format=F          an entry of formats
//	empty             the empty string is also accepted
//	or=A|B            one of these words is accepted instead of the type
func schemaWord(node Object, word string) {
	key, value, _ := strings.Cut(word, "=")
	switch key {
	case "required", "set":
	case "type":
		node["type"] = value
	case "min":
		node["minimum"] = number(value)
	case "max":
		node["maximum"] = number(value)
	case "nonempty":
		node["minItems"] = 1
	case "zero":
		alternative(node, Object{"const": 0}, "minimum", "maximum")
	case "or":
		node["type"] = []string{node["type"].(string), "string", "null"}
		node["pattern"] = "^(" + value + ")$"
	case "enum":
		var list []any
		for _, v := range strings.Split(value, "|") {
			list = append(list, v)
		}
		node["enum"] = list
	case "fold":
		node["pattern"] = foldPattern(value)
	case "format":
		for k, v := range formats[value] {
			node[k] = v
		}
	case "empty":
		if enum, ok := node["enum"].([]any); ok {
			node["enum"] = append(enum, "")
			return
		}
		alternative(node, Object{"const": ""}, "pattern", "not")
	default:
		panic("no such word: " + word)
	}
}

// alternative moves some keywords into the second of two alternatives.
func alternative(node, first Object, keywords ...string) {
	second := Object{}
	for _, k := range keywords {
		if v, ok := node[k]; ok {
			second[k] = v
			delete(node, k)
		}
	}
	node["anyOf"] = []any{first, second}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// foldPattern returns a pattern that matches words in any case, for which JSON Schema has no flag.
func foldPattern(words string) string {
	var b strings.Builder
	for _, r := range words {
		if r == '|' {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "[%s%s]", strings.ToUpper(string(r)), strings.ToLower(string(r)))
		}
	}
	return "^(" + b.String() + ")$"
}

const (
	octet   = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	ipv4    = octet + `(\.` + octet + `){3}`
	ipv6    = `[0-9A-Fa-f:]*:[0-9A-Fa-f:]*(` + ipv4 + `)?` // matches all addresses and some other texts
	hex2    = `[0-9A-Fa-f]{2}`
	unicast = `[0-9A-Fa-f][02468ACEace]`
	sixByte = unicast + `(:` + hex2 + `){5}|` + unicast + `(-` + hex2 + `){5}|` + unicast + hex2 + `(\.` + hex2 + hex2 +
		`){2}`
)

// control has most of the characters that a name must not contain, for a pattern.
const control = `\x00-\x1f\x7f-\x9f`

const optionNames = "dhcp-client-identifier|subnet-mask|routers|host-name|user-class|vendor-class-identifier"

const pci = `[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]`

// formats has patterns that refuse most invalid values, and no value that the parser accepts.
var formats = map[string]Object{
	"address": {"pattern": "^(" + ipv4 + "|" + ipv6 + ")$"},
	"prefix": {"pattern": "^(" + ipv4 + "/([0-9]|[12][0-9]|3[0-2])|" + ipv6 +
		"/([0-9]|[1-9][0-9]|1[01][0-9]|12[0-8]))$"},
	"asked": {"pattern": "^(" + ipv4 + "|" + ipv6 + ")(/[0-9]{1,3})?$"},
	"mac":   {"pattern": "^(" + sixByte + ")$", "not": Object{"type": "string", "pattern": "^[0:.-]+$"}},
	"hwaddr": {"pattern": "^(" + sixByte + "|" + hex2 + "([:-]" + hex2 + "){7}|" + hex2 + "([:-]" + hex2 + "){19}|" +
		hex2 + hex2 + `(\.` + hex2 + hex2 + "){3}|" + hex2 + hex2 + `(\.` + hex2 + hex2 + "){9})$",
		"not": Object{"type": "string", "pattern": `^(00([:-]00){5}|0000(\.0000){2})$`}},
	"link":   {"pattern": "^[^" + control + "]+$", "maxLength": 255},
	"ifname": {"pattern": `^[^/:%\s` + control + `]{1,15}$`, "not": Object{"enum": []any{".", "..", "all", "default"}}},
	"network": {"pattern": "^(" + ipv4 + "(/([1-9]|[12][0-9]|3[0-2]))?|" + ipv6 +
		"(/([1-9]|[1-9][0-9]|1[01][0-9]|12[0-8]))?)$"},
	"name":      {"pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*$", "maxLength": 255},
	"path":      {"pattern": `^(/[^/\x00]+)+$`},
	"file":      {"pattern": `^[^/\\` + control + `]+$`, "maxLength": 255, "not": Object{"enum": []any{".", ".."}}},
	"ports":     {"pattern": "^0*[1-9][0-9]{0,4}-0*[1-9][0-9]{0,4}$"},
	"pci":       {"pattern": "^" + pci + "$"},
	"sysdevice": {"pattern": "^/+sys/+devices/+[^/]"},
	"device":    {"pattern": "^(" + pci + `|[A-Za-z0-9_][A-Za-z0-9_.-]*)$`},
	"chain":     {"pattern": `^[#-,.-\[\]-~][!#-\[\]-~]{0,27}$`},
	"token":     {"pattern": "^[^\\x00-\\x1f\\x7f]+$"},
	// The names, or the number of any option.
	"dhcpoption": {"pattern": "^(" + optionNames + "|0*([1-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-4]))$",
		"not": Object{"type": "string", "pattern": "^0*53$"}},
	"sysctls": {"type": "object", "propertyNames": Object{"pattern": "^net[./]."},
		"additionalProperties": Object{"type": "string"}},
	"switch": {"type": []string{"boolean", "string"}, "pattern": foldPattern("true|false")},
}
