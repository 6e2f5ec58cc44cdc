package skel

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// lookup finds the value at key, runtimeConfig.portMappings[0].hostPort for
// instance, in a JSON document; nil when there is none. Names match as the
// decoder matches them: without regard to case, and of several the last one that
// leads to a value.
func lookup(doc json.RawMessage, key string) json.RawMessage {
	if key == "" || doc == nil {
		return nil
	}
	var b bytes.Buffer
	if json.Compact(&b, find(doc, key)) != nil {
		return nil
	}
	return b.Bytes()
}

func find(doc json.RawMessage, key string) json.RawMessage {
	if key == "" {
		return doc
	}
	step, rest := nextStep(key)
	switch {
	case step == "":
		return nil
	case step[0] == '[':
		return find(element(doc, step[1:]), rest)
	}
	for _, value := range slices.Backward(members(doc, step)) {
		if found := find(value, rest); found != nil {
			return found
		}
	}
	return nil
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

// members are the values that an object has under name, in their order.
func members(doc json.RawMessage, name string) (list []json.RawMessage) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return nil
	}
	for dec.More() {
		key, err := dec.Token()
		var value json.RawMessage
		if err != nil || dec.Decode(&value) != nil {
			return list
		}
		if text, _ := key.(string); strings.EqualFold(text, name) {
			list = append(list, value)
		}
	}
	return list
}
