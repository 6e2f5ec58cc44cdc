package skel

// What --check-config reads of a file beside the plugins' own keys.
type (
	WireList  = wireList
	WireEntry = wireEntry
)

// AppendLog adds a line to a log that may have so many bytes.
func AppendLog(path string, limit int64, line string) error {
	return logFile{path: path, max: limit}.append([]byte(line))
}
