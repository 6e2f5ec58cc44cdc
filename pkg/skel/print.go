package skel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// versionTimeout is how long an answer that needs no more than the version of
// the configuration waits for it. A caller who sends none need not close the
// stream.
const versionTimeout = 2 * time.Second

// answerVersion prints what versions we speak, in the version that we were
// asked in (specification, section 5). Nothing else of the input matters.
func (c *call) answerVersion(ctx context.Context) int {
	info := cni.VersionInfo{CNIVersion: c.askedVersion(ctx), SupportedVersions: cni.Versions()}
	out, err := json.Marshal(info)
	if err == nil {
		err = c.print(append(out, '\n'))
	}
	if err != nil {
		return c.fail(err)
	}
	return 0
}

// askedVersion is the cniVersion on standard input, whatever else is there; the
// newest when there is none.
func (c *call) askedVersion(ctx context.Context) string {
	asked := make(chan string, 1)
	go func() {
		var in struct {
			CNIVersion string `json:"cniVersion"`
		}
		err := json.NewDecoder(io.LimitReader(c.env.Stdin, confMax)).Decode(&in)
		if err != nil || in.CNIVersion == "" {
			in.CNIVersion = cni.Newest
		}
		asked <- in.CNIVersion
	}()
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	select {
	case version := <-asked:
		return version
	case <-ctx.Done():
		return cni.Newest
	}
}

// printResult writes the result of ADD, in one write.
func (c *call) printResult(res *cni.Result) error {
	if res == nil {
		return errors.New("the plugin returned no result")
	}
	out, err := res.Encode(c.version)
	if err != nil {
		return err
	}
	return c.print(out)
}

// print writes a document to standard output, in one write.
func (c *call) print(doc []byte) error {
	if c.env.Stdout == nil {
		return errors.New("standard output cannot be written")
	}
	err := writable(c.env.Stdout)
	n := 0
	if err == nil {
		n, err = c.env.Stdout.Write(doc)
	}
	if err == nil {
		return nil
	}
	if n > 0 { // half a document is out: no second one may follow it
		c.env.Stdout = nil
	}
	return cni.Errorf(cni.CodeIO, "standard output: %w", err)
}

// writable tells a standard output that was closed when we were started. The
// Go runtime puts /dev/null, open for reading and writing, in the place of a
// closed one, and a result written there is lost.
func writable(w any) error {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDWR {
		return err
	}
	var st, null unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) == nil && unix.Stat(os.DevNull, &null) == nil &&
		st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == null.Rdev {
		return errors.New("is closed")
	}
	return nil
}

// fail prints the error object, on standard output or, where that cannot be
// written, on standard error, and returns the exit status.
func (c *call) fail(err error) int {
	e := describe(err)
	version := c.version
	if version == "" {
		version = cni.Newest
	}
	out := e.Encode(version)
	if c.print(out) != nil {
		fmt.Fprintf(c.env.Stderr, "%s: %s\n", c.plugin.Name, out)
	}
	return 1
}

func quote(s string) string { return strconv.Quote(s) }
