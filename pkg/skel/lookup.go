package skel

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// lookup finds the value at key, runtimeConfig.portMappings[0].hostPort for
// instance, in a JSON document; nil when there is none. Names match as the
// decoder matches them: without regard to case when none is exact.
func lookup(doc json.RawMessage, key string) json.RawMessage {
	if key == "" {
		return nil
	}
	for key != "" && doc != nil {
		var step string
		switch step, key = nextStep(key); {
		case step == "":
			return nil
		case step[0] == '[':
			doc = element(doc, step[1:])
		default:
			doc = member(doc, step)
		}
	}
	var b bytes.Buffer
	if json.Compact(&b, doc) != nil {
		return nil
	}
	return b.Bytes()
}

// nextStep cuts the first step off a key: a name, or "[" and an index.
func nextStep(key string) (step, rest string) {
	key = strings.TrimPrefix(key, ".")
	if text, ok := strings.CutPrefix(key, "["); ok {
		if quoted, err := strconv.QuotedPrefix(text); err == nil {
			name, _ := strconv.Unquote(quoted) // it is quoted
			return name, strings.TrimPrefix(text[len(quoted):], "]")
		}
		index, rest, _ := strings.Cut(text, "]")
		return "[" + index, rest
	}
	if i := strings.IndexAny(key, ".["); i >= 0 {
		return key[:i], key[i:]
	}
	return key, ""
}

func element(doc json.RawMessage, index string) json.RawMessage {
	var list []json.RawMessage
	i, err := strconv.Atoi(index)
	if err != nil || json.Unmarshal(doc, &list) != nil || i < 0 || i >= len(list) {
		return nil
	}
	return list[i]
}

func member(doc json.RawMessage, name string) json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal(doc, &object) != nil {
		return nil
	}
	if value, ok := object[name]; ok {
		return value
	}
	for other, value := range object {
		if strings.EqualFold(other, name) {
			return value
		}
	}
	return nil
}
