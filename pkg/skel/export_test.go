package skel

// What --check-config reads of a file beside the plugins' own keys.
type (
	WireList  = wireList
	WireEntry = wireEntry
)

// SetVersion makes this the version of the suite until the function that it
// returns is called.
func SetVersion(v string) (restore func()) {
	old := version
	version = v
	return func() { version = old }
}

// AppendLog adds a line to a log that may have so many bytes.
func AppendLog(path string, limit int64, line string) error {
	return logFile{path: path, max: limit}.append([]byte(line))
}
