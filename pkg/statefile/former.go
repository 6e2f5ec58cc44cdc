package statefile

import (
	"bytes"
	"encoding/json"
)

// Decode decodes the JSON of a record, as a Store does. It also accepts the keys of earlier versions for a namespace,
// which the next Put replaces by the current keys.
func Decode(data []byte, record any) error { return json.Unmarshal(currentKeys(data), record) }

// currentKeys returns a record with the path of its namespace at "netnsPath" and the identity at "netns". In earlier
// versions, "netns" or "path" was the path, and "netns", "identity" or "ns" the identity.
func currentKeys(record []byte) []byte {
	contains := func(key string) bool { return bytes.Contains(record, []byte(key)) }
	var values map[string]json.RawMessage
	if contains(`"netnsPath"`) || !contains(`"netns":`) && !contains(`"path":`) ||
		json.Unmarshal(record, &values) != nil {
		return record
	}
	if former := values["netns"]; bytes.HasPrefix(former, []byte(`"`)) {
		values["netnsPath"] = former
		delete(values, "netns")
	} else if former, ok := values["path"]; ok {
		values["netnsPath"] = former
	}
	for _, key := range []string{"identity", "ns"} {
		if former, ok := values[key]; ok {
			values["netns"] = former
		}
	}
	current, err := json.Marshal(values)
	if err != nil {
		return record
	}
	return current
}
