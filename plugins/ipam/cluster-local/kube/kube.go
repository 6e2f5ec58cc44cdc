// Package kube is a minimal client of the Kubernetes API.
//
// Open reads a kubeconfig and returns a Client, which sends requests to one API server as one user. Do sends a
// request and retries it while the server is busy or unreachable, until the context ends. A request can therefore be
// carried out more than once, and also after Do has returned an error: the server may receive it late. Answer.Lost
// tells the caller when that is possible.
//
// A proxy between the node and the API server can answer in its place. Such an answer proves nothing about the
// server, so Request.Accept checks the content of a successful answer. Do treats an answer that Accept rejects as lost,
// and also a redirect and every answer 5xx.
//
// The package has no watches, caches or typed objects. client-go would provide them, but it is many times larger than
// the plugin, which sends a few requests and ends.
package kube

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Request is a request to the API server. The server may carry it out more than once, and even after Do has failed.
type Request struct {
	Method, Path string // Path includes the query
	Body         any    // sent as JSON; nil means no body
	Type         string // content type of Body; empty means application/json

	// Accept decodes the body of a successful answer. If Accept returns an error, a proxy has written the answer, and
	// Do treats the answer as lost. A nil Accept accepts every body.
	Accept func(body []byte) error
}

// Answer describes the answer to a request, without its body.
type Answer struct {
	Time time.Time // server's clock; zero if the server did not send it
	// Lost is true if any attempt got no answer, or an answer that does not show what the server did. The server may
	// then carry the request out once more at any later time.
	Lost bool
}

// Status is the error with which the server refuses a request.
type Status struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Details struct {
		Name string `json:"name"`
		Kind string `json:"kind"`
	} `json:"details"`
}

func (s *Status) Error() string { return fmt.Sprintf("%d %s: %s", s.Code, s.Reason, s.Message) }

// IsNotFound reports whether err means that the server has no object of this name. It returns false for a 404 about
// the path itself, which means that the resource type is not installed or that a proxy answered.
func IsNotFound(err error, name string) bool {
	s, ok := errors.AsType[*Status](err)
	return ok && s.Code == http.StatusNotFound && s.Reason == "NotFound" && s.Details.Name == name
}

// HasReason reports whether err is a refusal with this reason.
func HasReason(err error, reason string) bool {
	s, ok := errors.AsType[*Status](err)
	return ok && s.Reason == reason
}

const (
	firstWait     = 50 * time.Millisecond
	maxWait       = 2 * time.Second
	maxRetryAfter = time.Hour        // longer than any call
	attemptTime   = 15 * time.Second // time limit of one attempt
	maxBody       = 16 << 20         // size limit of an answer, in bytes
	maxForeign    = 3                // attempts whose answer is not from an API server
)

// errForeign is the error for an answer that no API server sends, such as a redirect or a proxy's error page.
var errForeign = errors.New("is not from a Kubernetes API server")

// Do sends a request until the server answers it or ctx ends. It retries after 429, after 5xx and without an answer.
// The pause is the server's Retry-After, or 50 ms to 2 s. After three foreign answers it gives up.
//
// Errors have code 11 if ctx ended (with the last answer) or Do gave up, and code 5 if the server refused the request.
// A refusal of the credentials (401, 403) names the user. Every refusal wraps a *Status.
func (c *Client) Do(ctx context.Context, r Request) (answer Answer, err error) {
	var body []byte
	if r.Body != nil {
		if body, err = json.Marshal(r.Body); err != nil {
			return answer, err
		}
	}
	for n, foreign := 1, 0; ; n++ {
		pause, err := c.attempt(ctx, r, body, &answer)
		if err == nil {
			return answer, nil
		}
		if pause < 0 {
			return answer, c.withCode(err)
		}
		if errors.Is(err, errForeign) {
			foreign++
		}
		if pause == 0 {
			pause = pauseAfter(n)
		} else {
			pause += rand.N(firstWait)
		}
		if foreign == maxForeign {
			return answer, cni.Errorf(cni.CodeTryAgain, "%w; correct the server in kubeconfig %s", err, c.path)
		}
		if !wait(ctx, pause) {
			return answer, cni.Errorf(cni.CodeTryAgain, "%s does not serve %s: %w", c.base, r.Method, err)
		}
	}
}

// Pause waits 50 ms to 2 s after attempt n, counted from 1, which failed with err because another client changed the
// object concurrently. If ctx ends first, it returns err with code 11.
func Pause(ctx context.Context, n int, err error) error {
	if !wait(ctx, pauseAfter(n)) {
		return cni.Errorf(cni.CodeTryAgain, "gave up after %d attempts: %w", n, err)
	}
	return nil
}

// pauseAfter returns how long to wait after attempt n. Half of it is random, so that clients do not retry together.
func pauseAfter(n int) time.Duration {
	pause := maxWait
	if n < 7 {
		pause = min(firstWait<<(n-1), maxWait)
	}
	return pause/2 + rand.N(pause/2)
}

// wait waits for d and returns true. It returns false if ctx ends first: without waiting if the deadline of ctx is
// earlier.
func wait(ctx context.Context, d time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= d {
		return false
	}
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// attempt sends the request once. After an error, pause is the server's Retry-After, 0 if the server sent none, or
// negative if the request must not be retried.
func (c *Client) attempt(ctx context.Context, r Request, body []byte, a *Answer) (pause time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.Method, c.base+r.Path, bytes.NewReader(body))
	if err != nil {
		return -1, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "hawser")
	if body != nil {
		req.Header.Set("Content-Type", cmp.Or(r.Type, "application/json"))
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.RoundTrip(req)
	if err != nil {
		if _, wrong := errors.AsType[*tls.CertificateVerificationError](err); wrong {
			return -1, cni.Errorf(cni.CodeIO, "%w", err)
		}
		a.Lost = true
		return 0, err
	}
	defer resp.Body.Close()
	a.Time, _ = http.ParseTime(resp.Header.Get("Date"))
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		a.Lost = true
		return 0, fmt.Errorf("%s: answer %d cannot be read: %w", c.base, resp.StatusCode, err)
	}
	if err := r.check(resp, data); err != nil {
		a.Lost = true
		return 0, fmt.Errorf("%s: answer %d %w: %w", c.base, resp.StatusCode, errForeign, err)
	}
	if resp.StatusCode/100 == 2 {
		return 0, nil
	}
	s := statusOf(resp.StatusCode, data)
	switch {
	case s.Code == http.StatusTooManyRequests:
	case s.Code/100 == 5:
		a.Lost = true
	default:
		return -1, s
	}
	return retryAfter(resp), s
}

// check returns an error that says why an answer cannot be from an API server, or nil if it can.
func (r Request) check(resp *http.Response, body []byte) error {
	switch kind := resp.StatusCode / 100; {
	case len(body) > maxBody:
		return fmt.Errorf("it has more than %d bytes", maxBody)
	case kind == 2 && r.Accept != nil:
		return r.Accept(body)
	case kind == 3:
		return fmt.Errorf("it redirects to %.200q", resp.Header.Get("Location"))
	case kind != 2 && kind != 4 && kind != 5:
		return fmt.Errorf("%.200q", body)
	}
	return nil
}

// retryAfter returns how long the server wants clients to wait; 0 if Retry-After is missing or not in seconds.
func retryAfter(resp *http.Response) time.Duration {
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // larger numbers give the largest int
	return min(time.Duration(max(seconds, 0)), maxRetryAfter/time.Second) * time.Second
}

// statusOf decodes a refusal. If a proxy wrote it, the message quotes its beginning.
func statusOf(code int, data []byte) *Status {
	var s Status
	if json.Unmarshal(data, &s) != nil || s.Code != code {
		s = Status{Reason: "unknown", Message: fmt.Sprintf("%.200q", data)}
	}
	s.Code = code
	s.Message = s.Message[:min(len(s.Message), 500)]
	return &s
}

// withCode returns err with the CNI error code of a refusal. It names the user whose credentials were refused.
func (c *Client) withCode(err error) error {
	s, ok := errors.AsType[*Status](err)
	switch {
	case !ok:
		return err
	case s.Code == http.StatusUnauthorized || s.Code == http.StatusForbidden:
		return cni.Errorf(cni.CodeIO, "%s refuses the user %q of kubeconfig %s: %w", c.base, c.name, c.path, err)
	case s.Code == http.StatusGone: // a continue token has expired; the list must start again
		return cni.Errorf(cni.CodeTryAgain, "%s: %w", c.base, err)
	}
	return cni.Errorf(cni.CodeIO, "%s: %w", c.base, err)
}
