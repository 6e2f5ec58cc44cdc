package skel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// logVar is the variable that names the log. It wins over the key.
const logVar = "HAWSER_LOG"

// Keys are those that every plugin of this suite reads. A plugin embeds them in
// the struct of its configuration.
type Keys struct {
	Log string `json:"log" help:"file to which every call adds a line (none); HAWSER_LOG in the environment wins" schema:"format=path empty"`
}

const (
	// textMax bounds each text of a line, and listMax each list.
	textMax = 4 << 10
	listMax = 64
)

// line is what one call adds to the log.
type line struct {
	Time        string      `json:"time"`
	PID         int         `json:"pid"`
	Plugin      string      `json:"plugin"`
	Version     string      `json:"version"`
	Verb        string      `json:"verb"`
	CNIVersion  string      `json:"cniVersion,omitempty"`
	Network     string      `json:"network,omitempty"`
	ContainerID string      `json:"containerID,omitempty"`
	IfName      string      `json:"ifname,omitempty"`
	MS          ms          `json:"ms"`
	Steps       []timed     `json:"steps"`
	Result      *lineResult `json:"result,omitempty"`
	Error       *lineError  `json:"error,omitempty"`
}

type lineResult struct {
	Interfaces []string `json:"interfaces,omitempty"`
	IPs        []string `json:"ips,omitempty"`
}

type lineError struct {
	Code    uint   `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details,omitempty"`
}

// timed is a step, and how long it took.
type timed struct {
	Name string `json:"name"`
	MS   ms     `json:"ms"`
}

// ms is a time as milliseconds, three digits behind the point.
type ms time.Duration

// MarshalJSON is that of json.Marshaler.
func (m ms) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(m).Seconds()*1000), nil
}

// record collects what the log says of a call. A nil one collects nothing.
type record struct {
	path  string
	from  string // what names the path, for warnings
	steps []timed
	since time.Time // when the last of them began
}

// startLog begins the record of a call that began a while ago.
func (c *call) startLog(from, path string) {
	c.record = &record{path: path, from: from, since: c.began}
	c.record.step("decode")
}

func (r *record) step(name string) {
	if r == nil {
		return
	}
	r.end()
	r.steps = append(r.steps, timed{Name: name})
}

// end ends the last step.
func (r *record) end() {
	now := time.Now()
	if n := len(r.steps); n > 0 {
		r.steps[n-1].MS = ms(now.Sub(r.since))
		r.since = now
	}
}

// Step says what the call does from now on, until the next Step. The log has
// the time that each took.
func (r *Request) Step(name string) { r.record.step(name) }

// logKey reads the key log. The variable wins, but what is wrong with the key
// is an error all the same.
func (c *call) logKey(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	var path string
	if json.Unmarshal(raw, &path) != nil {
		return cni.Refuse("log", raw, "is no string")
	}
	if reason := refusePath(path); path != "" && reason != "" {
		refused := cni.Refuse("log", path, reason).Suggest("name a file by its absolute path, /var/log/hawser.log for example")
		if plain := filepath.Clean(path); refusePath(plain) == "" {
			refused.Suggest("write %q", plain)
		}
		return refused
	}
	if path != "" && c.record == nil {
		c.startLog("log", path)
	}
	return nil
}

func refusePath(path string) string {
	switch {
	case !filepath.IsAbs(path):
		return "is no absolute path"
	case filepath.Clean(path) != path || path == "/" || strings.ContainsRune(path, 0):
		return "is no plain path of a file"
	}
	return ""
}

// log adds the call to the log, if there is one. That it cannot be written is
// no reason to fail.
func (c *call) log(err error) {
	r := c.record
	if r == nil {
		return
	}
	r.end()
	failed := error(nil)
	if reason := refusePath(r.path); reason != "" {
		failed = fmt.Errorf("%q: %s", r.path, reason)
	} else if data, err := c.line(err).encode(); err != nil {
		failed = err
	} else {
		failed = logFile{path: r.path, max: logMax}.append(data)
	}
	if failed != nil {
		fmt.Fprintf(c.env.Stderr, "%s: %s: %v; the call is not in the log\n", c.plugin.Name, r.from, failed)
	}
}

func (c *call) line(err error) *line {
	r := c.record
	l := &line{
		Time: c.began.UTC().Format("2006-01-02T15:04:05.000Z07:00"), PID: os.Getpid(),
		Plugin: c.plugin.Name, Version: version, Verb: cut(c.vars["CNI_COMMAND"]), CNIVersion: c.version,
		ContainerID: cut(c.vars["CNI_CONTAINERID"]), IfName: cut(c.vars["CNI_IFNAME"]),
		MS: ms(time.Since(c.began)), Steps: r.steps[:min(len(r.steps), listMax)],
	}
	if c.req != nil {
		l.Network = cut(c.req.Network)
	}
	switch {
	case err != nil:
		e, hide := describe(err), c.secrets()
		l.Error = &lineError{Code: e.Code, Msg: cut(hide.in(e.Msg)), Details: cut(hide.in(e.Details))}
	case c.result != nil:
		l.Result = summary(c.result)
	}
	return l
}

func summary(res *cni.Result) *lineResult {
	s := &lineResult{}
	for _, i := range res.Interfaces[:min(len(res.Interfaces), listMax)] {
		s.Interfaces = append(s.Interfaces, cut(i.Name))
	}
	for _, ip := range res.IPs[:min(len(res.IPs), listMax)] {
		s.IPs = append(s.IPs, ip.Address.String())
	}
	return s
}

func cut(text string) string {
	if len(text) <= textMax {
		return text
	}
	return text[:textMax] + "..."
}

func (l *line) encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(l)
	return b.Bytes(), err
}
