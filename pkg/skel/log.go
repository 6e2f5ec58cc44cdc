package skel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

const (
	// logVar is the environment variable with the path of the administrator's log. It takes precedence over LogKey.
	logVar = "HAWSER_LOG"
	// LogDir is the only directory for logs of LogKey, because a tenant must not make root write to other files.
	LogDir = "/var/log/hawser"
)

// LogKey is the key log, which the configuration struct of every plugin embeds.
type LogKey struct {
	Log string `json:"log" help:"file in /var/log/hawser to which every call adds a line, or its spans if the name ends in .otlp (none); HAWSER_LOG in the environment takes precedence" schema:"format=name empty"`
}

// line is the JSON of a line of the log.
type line struct {
	Time        string              `json:"time"`
	PID         int                 `json:"pid"`
	Plugin      string              `json:"plugin"`
	Version     string              `json:"version"`
	Verb        string              `json:"verb"`
	CNIVersion  string              `json:"cniVersion,omitempty"`
	Network     string              `json:"network,omitempty"`
	ContainerID string              `json:"containerID,omitempty"`
	IfName      string              `json:"ifname,omitempty"`
	MS          float64             `json:"ms"`
	Result      map[string][]string `json:"result,omitempty"`
	Error       map[string]any      `json:"error,omitempty"`
	Warnings    []string            `json:"warnings,omitempty"`
	TraceParent string              `json:"traceparent,omitempty"`
	TraceState  string              `json:"tracestate,omitempty"`
	Baggage     string              `json:"baggage,omitempty"`
}

// readLogKey decodes the key log. An invalid value is an error even if the variable takes precedence.
func (c *call) readLogKey(raw json.RawMessage) error {
	var name string
	if len(raw) > 0 && json.Unmarshal(raw, &name) != nil {
		return cni.Refuse("log", nil, "is not a JSON string")
	}
	if name != "" && !cni.ValidName(name) {
		return cni.Refuse("log", name, "is not a plain file name").
			Suggest("write \"hawser.log\" for " + LogDir + "/hawser.log, or set " + logVar +
				" in the runtime's environment for a file elsewhere")
	}
	c.logName = name
	return nil
}

// logPath returns the path of the log and the function that opens it. There is no log if Env.ReadOnly is set.
func (c *call) logPath() (path string, open func(string) (*os.File, error)) {
	switch {
	case c.env.ReadOnly:
	case c.vars[logVar] != "":
		return c.vars[logVar], openLogOfVariable
	case c.logName != "":
		return filepath.Join(LogDir, c.logName), openLogOfKey
	}
	return "", nil
}

// log adds the call to the log, if there is one. A failure does not make the call fail.
func (c *call) log(err error) {
	path, open := c.logPath()
	if path == "" {
		return
	}
	var entry []byte
	switch {
	case !strings.HasSuffix(path, otlpSuffix):
		entry, _ = json.Marshal(c.line(err)) // cannot fail, because it has only texts and numbers
	case c.startTrace() == nil: // the caller does not sample this call
		return
	default:
		entry = c.trace.document(c.line(err))
	}
	f, logErr := open(path)
	if logErr == nil {
		defer f.Close()
		_, logErr = f.Write(append(entry, '\n')) // in one write, so that lines of parallel calls are not mixed
	}
	if logErr != nil {
		fmt.Fprintf(c.env.Stderr, "%s: log %q: %v; the call is not in the log\n", c.plugin.Name, path, logErr)
	}
}

const logFlags = os.O_APPEND | os.O_CREATE | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC

// openLogOfVariable opens the administrator's log. It accepts only regular files and does not follow symbolic links,
// because other users may be able to write to the directory.
func openLogOfVariable(path string) (*os.File, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, errors.New("is not a plain absolute path of a file")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|logFlags, 0o600)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("is not a regular file"), f.Close())
	}
	return f, nil
}

const lineStart = `{"time":"` // beginning of a log of JSON lines

// openLogOfKey opens a log in LogDir, creates both if necessary, and refuses a file that is not a log.
func openLogOfKey(path string) (*os.File, error) {
	if err := os.Mkdir(LogDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	dir, err := os.OpenFile(LogDir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var st unix.Stat_t
	if unix.Fstat(int(dir.Fd()), &st) != nil || !isOnlyOurs(st) {
		return nil, fmt.Errorf("other users can write to %s; chown it to root and chmod it to 0700", LogDir)
	}
	fd, err := unix.Openat(int(dir.Fd()), filepath.Base(path), os.O_RDWR|logFlags, 0o600)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	prefix := lineStart
	if strings.HasSuffix(path, otlpSuffix) {
		prefix = otlpStart
	}
	start := make([]byte, len(prefix))
	n, _ := f.ReadAt(start, 0) // can be shorter: a new log is empty, and a full disk truncates the first line
	switch {
	case unix.Fstat(fd, &st) != nil, st.Mode&unix.S_IFMT != unix.S_IFREG, st.Nlink != 1:
		err = errors.New("is not a regular file, or has a second hard link")
	case !isOnlyOurs(st):
		err = errors.New("other users can write to it; chown it to root and chmod it to 0600")
	case !strings.HasPrefix(prefix, string(start[:n])):
		err = errors.New("does not begin like a log; choose another name")
	default:
		return f, nil
	}
	return nil, errors.Join(err, f.Close())
}

// isOnlyOurs reports whether this user owns the file and no other user can write to it.
func isOnlyOurs(st unix.Stat_t) bool { return st.Uid == uint32(os.Geteuid()) && st.Mode&0o022 == 0 }

func (c *call) line(err error) line {
	l := line{
		Time: c.start.UTC().Format("2006-01-02T15:04:05.000Z07:00"), PID: os.Getpid(),
		Plugin: c.plugin.Name, Version: Version(), Verb: c.vars["CNI_COMMAND"], CNIVersion: c.version,
		ContainerID: c.vars["CNI_CONTAINERID"], IfName: c.vars["CNI_IFNAME"],
		MS: float64(time.Since(c.start).Microseconds()) / 1000,
	}
	if r := parseTraceParent(c.vars); r.traceID != "" {
		l.TraceParent, l.TraceState = c.vars["TRACEPARENT"], r.state
	}
	if baggage := c.vars["BAGGAGE"]; isPrintable(baggage) {
		l.Baggage = baggage
	}
	if c.req != nil {
		l.Network, l.Warnings = c.req.Network, c.req.warnings
	}
	switch {
	case err != nil:
		e := errorObject(err) // without details, which may contain text of another program
		l.Error = map[string]any{"code": e.Code, "msg": e.Msg}
		if e.IsQuoted() {
			l.Error["quoted"] = true
		}
	case c.result != nil:
		l.Result = map[string][]string{}
		for _, i := range c.result.Interfaces {
			l.Result["interfaces"] = append(l.Result["interfaces"], i.Name)
		}
		for _, ip := range c.result.IPs {
			l.Result["ips"] = append(l.Result["ips"], ip.Address.String())
		}
	}
	return l
}
