package skel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	otlpSuffix = ".otlp"              // suffix of the name of a log with the spans of each call (OTLP/JSON)
	otlpStart  = `{"resourceSpans":[` // beginning of such a log
)

// remoteSpan is the caller's span (W3C Trace Context, in OpenTelemetry's variables). Without one, traceID is empty.
type remoteSpan struct {
	traceID, spanID string
	flags           byte
	state           string
}

// parseTraceParent returns the span that TRACEPARENT and TRACESTATE describe. It ignores an invalid variable, and
// TRACESTATE without a valid TRACEPARENT.
func parseTraceParent(vars map[string]string) (r remoteSpan) {
	p := strings.Split(vars["TRACEPARENT"], "-")
	isHex := func(s string, digits int) bool { return len(s) == digits && strings.Trim(s, "0123456789abcdef") == "" }
	isID := func(s string, digits int) bool { return isHex(s, digits) && strings.Trim(s, "0") != "" }
	if len(p) < 4 || !isHex(p[0], 2) || p[0] == "ff" || p[0] == "00" && len(p) > 4 || // version 00 has exactly 4
		!isID(p[1], 32) || !isID(p[2], 16) || !isHex(p[3], 2) {
		return remoteSpan{}
	}
	flags, _ := strconv.ParseUint(p[3], 16, 8)
	r = remoteSpan{traceID: p[1], spanID: p[2], flags: byte(flags)}
	members := strings.Split(vars["TRACESTATE"], ",")
	isBad := func(m string) bool { return strings.TrimSpace(m) != "" && strings.Index(m, "=") < 1 }
	if state := vars["TRACESTATE"]; isPrintable(state) && len(members) <= 32 && !slices.ContainsFunc(members, isBad) {
		r.state = state
	}
	return r
}

// isPrintable reports whether a text contains only printable ASCII characters and is not longer than W3C permits.
func isPrintable(s string) bool {
	return len(s) <= 8192 && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}

// trace contains the spans of a call. It is nil for a call without a trace; the methods of a nil trace do nothing.
type trace struct {
	remoteSpan
	spans  []*span // the first is the span of the call itself
	step   *span   // the current step of ADD
	parent *span   // parent of the spans of delegates
}

type span struct {
	id, parent string
	name       string
	start, end time.Time
	errMsg     string // empty if it succeeded
}

// startTrace returns the call's trace, and starts it if necessary. It returns nil if the log is not for spans, or if
// the caller does not sample this call.
func (c *call) startTrace() *trace {
	path, _ := c.logPath()
	if c.trace != nil || !strings.HasSuffix(path, otlpSuffix) {
		return c.trace
	}
	const sampled = 1 << 0
	r := parseTraceParent(c.vars)
	if r.traceID != "" && r.flags&sampled == 0 {
		return nil
	}
	if r.traceID == "" {
		r = remoteSpan{traceID: newID() + newID(), flags: sampled}
	}
	c.trace = &trace{remoteSpan: r}
	// Without a caller's span, spanID is empty, and the span of the call has no parent.
	c.trace.parent = c.trace.begin(&span{id: r.spanID}, c.plugin.Name+" "+c.vars["CNI_COMMAND"], c.start)
	return c.trace
}

// newID returns a random ID. It is never zero, because that is not a valid ID.
func newID() string { return fmt.Sprintf("%016x", rand.Uint64()|1) }

func (t *trace) begin(parent *span, name string, start time.Time) *span {
	if t == nil {
		return nil
	}
	s := &span{id: newID(), parent: parent.id, name: name, start: start}
	t.spans = append(t.spans, s)
	return s
}

func (t *trace) end(s *span, err error) {
	if t == nil || s == nil {
		return
	}
	s.end = time.Now()
	if err != nil {
		s.errMsg = errorObject(err).Msg // without details, like the log
	}
}

// addDecodeSpan adds a span for the work since the beginning of the call.
func (t *trace) addDecodeSpan(err error) {
	if t != nil {
		t.end(t.begin(t.spans[0], "decode", t.spans[0].start), err)
	}
}

// nest begins a span, which is the parent of delegates' spans until end is called.
func (t *trace) nest(name string) (end func(error)) {
	if t == nil {
		return func(error) {}
	}
	outer := t.parent
	inner := t.begin(outer, name, time.Now())
	t.parent = inner
	return func(err error) {
		t.end(inner, err)
		t.parent = outer
	}
}

// Step names the step of ADD that begins now. In a trace, the step is a span until the next step or the end of ADD.
func (r *Request) Step(name string) {
	if t := r.trace; t != nil {
		t.endStep(nil)
		t.step = t.begin(t.spans[0], name, time.Now())
	}
}

func (t *trace) endStep(err error) {
	if t != nil {
		t.end(t.step, err)
		t.step = nil
	}
}

// Delegate returns the environment for a delegate's command, and a function that the caller must call with the
// delegate's error when the delegate ends. In a trace, the call is a span and the parent of the delegate's own spans.
func (r *Request) Delegate(name, command string) (env []string, end func(error)) {
	var s *span
	set := []string{"CNI_COMMAND=" + command}
	if t := r.trace; t != nil {
		s = t.begin(t.parent, "delegate "+name+" "+command, time.Now())
		set = append(set, fmt.Sprintf("TRACEPARENT=00-%s-%s-%02x", t.traceID, s.id, t.flags), "TRACESTATE="+t.state)
	}
	env = slices.DeleteFunc(slices.Clone(r.Env), func(kv string) bool {
		key, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(set, func(kv string) bool { return strings.HasPrefix(kv, key+"=") })
	})
	return append(env, set...), func(err error) { r.trace.end(s, err) }
}

// document returns the line of OTLP/JSON with the spans of the call that l describes. encoding/json would take three
// times as long, because its preparation of a type pays off only in a process that encodes many values of the type.
func (t *trace) document(l line) []byte {
	t.end(t.spans[0], nil)
	b := fmt.Appendf(nil, otlpStart+
		`{"resource":{"attributes":[%s]},"scopeSpans":[{"scope":{"name":"hawser"},"spans":[`,
		attributes("service.name", "hawser", "service.version", l.Version, "process.pid", uint(os.Getpid())))
	for i, s := range t.spans {
		if i > 0 {
			b = append(b, ',')
		}
		if s.end.IsZero() { // its end was not reported
			s.end = t.spans[0].end
		}
		b = fmt.Appendf(b, `{"traceId":"%s","name":%s,"spanId":"%s","parentSpanId":"%s","traceState":%s,`+
			`"flags":%d,"kind":1,"startTimeUnixNano":"%d","endTimeUnixNano":"%d"`,
			t.traceID, quote(s.name), s.id, s.parent, quote(t.state), t.flags, s.start.UnixNano(), s.end.UnixNano())
		if i == 0 {
			b = fmt.Appendf(b, `,"attributes":[%s]`, attributes("cni.plugin", l.Plugin, "cni.verb", l.Verb,
				"cni.version", l.CNIVersion, "cni.network", l.Network, "container.id", l.ContainerID,
				"cni.ifname", l.IfName, "cni.interfaces", l.Result["interfaces"], "cni.ips", l.Result["ips"],
				"cni.warnings", l.Warnings, "cni.code", l.Error["code"]))
			s.errMsg, _ = l.Error["msg"].(string)
		}
		if s.errMsg != "" {
			b = fmt.Appendf(b, `,"status":{"code":2,"message":%s}`, quote(s.errMsg))
		}
		b = append(b, '}')
	}
	return append(b, "]}]}]}"...)
}

func quote(s string) string {
	if isPrintable(s) && !strings.ContainsAny(s, `"\`) {
		return `"` + s + `"`
	}
	text, _ := json.Marshal(s) // cannot fail
	return string(text)
}

// attributes returns the OTLP/JSON of attributes, given as pairs of key and value. It omits empty values.
func attributes(pairs ...any) []byte {
	var all [][]byte
	add := func(key any, format string, args ...any) {
		all = append(all, fmt.Appendf(nil, `{"key":"%s","value":{`+format+`}}`, append([]any{key}, args...)...))
	}
	for pair := range slices.Chunk(pairs, 2) {
		switch v := pair[1].(type) {
		case string:
			if v != "" {
				add(pair[0], `"stringValue":%s`, quote(v))
			}
		case uint:
			add(pair[0], `"intValue":"%d"`, v)
		case []string:
			var values [][]byte
			for _, s := range v {
				values = append(values, fmt.Appendf(nil, `{"stringValue":%s}`, quote(s)))
			}
			if v != nil {
				add(pair[0], `"arrayValue":{"values":[%s]}`, bytes.Join(values, []byte(",")))
			}
		}
	}
	return bytes.Join(all, []byte(","))
}
