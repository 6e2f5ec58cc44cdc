// Package kube speaks to a Kubernetes API server: it reads a kubeconfig, and sends one request after the other, each
// again for as long as the server is busy or cannot be reached.
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

// Request is one request. It may be carried out more than once, and after Do has failed.
type Request struct {
	Method, Path string // with the query
	Body         any    // nil = none; else it is sent as JSON
	Type         string // of the body; empty = application/json

	// Accept reads the answer of a request that went well. An answer that it refuses counts as lost: something between
	// here and the server has written it.
	Accept func(body []byte) error
}

// Answer is what there is to know of an answer beside its body.
type Answer struct {
	Time time.Time // by the clock of the server; zero where it does not say
	// Lost says that there was no answer at first, or only one from which it cannot be known what the server did:
	// it may carry the request out, again, at any later time.
	Lost bool
}

// Status is the server's refusal of a request.
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

// IsAbsent says whether err is the server's word that there is no object of this name. That it knows nothing of the
// path, because such objects are not installed or a proxy answers, is another thing.
func IsAbsent(err error, name string) bool {
	s, ok := errors.AsType[*Status](err)
	return ok && s.Code == http.StatusNotFound && s.Reason == "NotFound" && s.Details.Name == name
}

// Is says whether err is a refusal with this reason.
func Is(err error, reason string) bool {
	s, ok := errors.AsType[*Status](err)
	return ok && s.Reason == reason
}

const (
	firstWait  = 50 * time.Millisecond
	longWait   = 2 * time.Second
	longestAsk = time.Hour        // the longest Retry-After; longer than any call
	answerTime = 15 * time.Second // limit of one attempt
	bodyMax    = 16 << 20         // limit of an answer, in bytes
	foreignMax = 3                // attempts whose answer is not an API server's
)

// errForeign is the error of an answer that no API server gives, such as a redirect or a page of a proxy.
var errForeign = errors.New("is not from a Kubernetes API server")

// Do sends a request until it is answered, or until ctx ends. It repeats what is answered by 429 or 5xx, or not at all,
// after as long as the server says, or from 50 ms to 2 s. A request whose answers no API server gives is sent three
// times. The errors: code 11 when the time is over, with the last answer, code 5 when the credentials are refused (401,
// 403), with the user, and for any other refusal. A refusal is a *Status below.
func (c *Client) Do(ctx context.Context, r Request) (a Answer, err error) {
	var body []byte
	if r.Body != nil {
		if body, err = json.Marshal(r.Body); err != nil {
			return a, err
		}
	}
	for n, foreign := 1, 0; ; n++ {
		again, err := c.attempt(ctx, r, body, &a)
		if err == nil {
			return a, nil
		}
		if again < 0 {
			return a, c.explain(err)
		}
		if errors.Is(err, errForeign) {
			foreign++
		}
		if again == 0 {
			again = pauseAfter(n)
		} else {
			again += rand.N(firstWait)
		}
		if foreign == foreignMax {
			return a, cni.Errorf(cni.CodeTryAgain, "%w; correct the server in kubeconfig %s", err, c.path)
		}
		if !wait(ctx, again) {
			return a, cni.Errorf(cni.CodeTryAgain, "%s does not serve %s: %w", c.base, r.Method, err)
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

// pauseAfter returns how long to wait after attempt n. Half of the time is random, so that clients that were refused
// together do not retry together.
func pauseAfter(n int) time.Duration {
	pause := longWait
	if n < 7 {
		pause = min(firstWait<<(n-1), longWait)
	}
	return pause/2 + rand.N(pause/2)
}

// wait waits for d and returns true. If ctx ends first, it returns false, and does so immediately if ctx's deadline is
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

// attempt sends the request once. After an error it returns how long to wait before the next attempt, as the server
// says; 0 = it does not say, below 0 = there is to be none.
func (c *Client) attempt(ctx context.Context, r Request, body []byte, a *Answer) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
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
	data, err := io.ReadAll(io.LimitReader(resp.Body, bodyMax+1))
	if err != nil {
		a.Lost = true
		return 0, fmt.Errorf("%s: answer %d cannot be read: %w", c.base, resp.StatusCode, err)
	}
	if err := r.accept(resp, data); err != nil {
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

// accept returns the reason why an answer cannot be from an API server; nil if it can.
func (r Request) accept(resp *http.Response, body []byte) error {
	switch kind := resp.StatusCode / 100; {
	case len(body) > bodyMax:
		return fmt.Errorf("it has more than %d bytes", bodyMax)
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
	return min(time.Duration(max(seconds, 0)), longestAsk/time.Second) * time.Second
}

// statusOf reads a refusal, which a proxy may have written.
func statusOf(code int, data []byte) *Status {
	var s Status
	if json.Unmarshal(data, &s) != nil || s.Code != code {
		s = Status{Reason: "unknown", Message: fmt.Sprintf("%.200q", data)}
	}
	s.Code = code
	s.Message = s.Message[:min(len(s.Message), 500)]
	return &s
}

// explain gives a refusal its code, and says whose credentials were refused.
func (c *Client) explain(err error) error {
	s, ok := errors.AsType[*Status](err)
	switch {
	case !ok:
		return err
	case s.Code == http.StatusUnauthorized || s.Code == http.StatusForbidden:
		return cni.Errorf(cni.CodeIO, "%s refuses the user %q of kubeconfig %s: %w", c.base, c.name, c.path, err)
	case s.Code == http.StatusGone: // the list that a page is of is too old by now
		return cni.Errorf(cni.CodeTryAgain, "%s: %w", c.base, err)
	}
	return cni.Errorf(cni.CodeIO, "%s: %w", c.base, err)
}
