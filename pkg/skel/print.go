package skel

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// versionTimeout is how long an answer that needs no more than the version of
// the configuration waits for it. A caller who sends none need not close the
// stream.
const versionTimeout = 2 * time.Second

// answerVersion prints what versions we speak, in the version that we were
// asked in (specification, section 5). Nothing else of the input matters.
func (c *call) answerVersion() error {
	out, err := json.Marshal(struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{c.askedVersion(), cni.Versions()})
	if err != nil {
		return err
	}
	return c.print(append(out, '\n'))
}

// askedVersion is the cniVersion on standard input, whatever else is there; the
// newest when there is none.
func (c *call) askedVersion() string {
	var in struct {
		CNIVersion string `json:"cniVersion"`
	}
	answer := make(chan string, 1)
	go func() {
		_ = json.NewDecoder(io.LimitReader(c.env.Stdin, confMax)).Decode(&in) // what cannot be read has no version
		answer <- in.CNIVersion
	}()
	select {
	case version := <-answer:
		return cmp.Or(version, cni.Newest)
	case <-time.After(versionTimeout):
		return cni.Newest
	}
}

// printResult writes the result of ADD, in one write.
func (c *call) printResult(res *cni.Result) error {
	if res == nil {
		return errors.New("the plugin returned no result")
	}
	out, err := res.Encode(c.version)
	if err == nil {
		err = c.print(out)
	}
	if err == nil {
		c.result = res
	}
	return err
}

// print writes a document to standard output, in one write.
func (c *call) print(doc []byte) error {
	if c.env.Stdout == nil {
		return errors.New("standard output cannot be written")
	}
	n, err := c.env.Stdout.Write(doc)
	if err == nil {
		return nil
	}
	if n > 0 { // half a document is out: no second one may follow it
		c.env.Stdout = nil
	}
	return cni.Errorf(cni.CodeIO, "standard output: %w", err)
}

// fail prints the error object, on standard output or, where that cannot be
// written, on standard error, and returns the exit status.
func (c *call) fail(err error) int {
	e := describe(err)
	out := e.Encode(cmp.Or(c.version, cni.Newest))
	if c.print(out) != nil {
		fmt.Fprintf(c.env.Stderr, "%s: %s\n", c.plugin.Name, out)
	}
	return 1
}

func quote(s string) string { return strconv.Quote(s) }
