package ns

import (
	"bytes"
	"encoding/json"
)

// CurrentKeys returns a JSON object that has a namespace's path at "netnsPath" and its identity at "netns". In records
// of earlier versions, "netns" or "path" is the path, and "netns", "identity" or "ns" is the identity. The
// UnmarshalJSON method of a record type calls CurrentKeys, so that such a record is read, and the next write has the
// current keys.
func CurrentKeys(record []byte) []byte {
	var values map[string]json.RawMessage
	if bytes.Contains(record, []byte(`"netnsPath"`)) || json.Unmarshal(record, &values) != nil {
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
