package skel

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// versionTimeout is how long VERSION waits for the configuration that says
// which version to answer in. A caller who sends none need not close the
// stream.
const versionTimeout = 2 * time.Second

// answerVersion prints what versions we speak, in the version that we were
// asked in (specification, section 5). Nothing else of the input matters.
func (c *call) answerVersion() int {
	asked := make(chan string, 1)
	go func() {
		var in struct {
			CNIVersion string `json:"cniVersion"`
		}
		if json.NewDecoder(c.env.Stdin).Decode(&in) != nil || in.CNIVersion == "" {
			in.CNIVersion = cni.Newest
		}
		asked <- in.CNIVersion
	}()
	info := cni.VersionInfo{CNIVersion: cni.Newest, SupportedVersions: cni.Versions()}
	select {
	case info.CNIVersion = <-asked:
	case <-time.After(versionTimeout):
	}
	out, err := json.Marshal(info)
	if err == nil {
		_, err = c.env.Stdout.Write(append(out, '\n'))
	}
	if err != nil {
		fmt.Fprintf(c.env.Stderr, "%s: print the version: %v\n", c.plugin.Name, err)
		return 1
	}
	return 0
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
	if err := writable(c.env.Stdout); err != nil {
		return cni.Errorf(cni.CodeIO, "standard output: %w", err)
	}
	n, err := c.env.Stdout.Write(out)
	if err != nil {
		if n > 0 { // half a document is out: no second one may follow it
			c.env.Stdout = nil
		}
		return cni.Errorf(cni.CodeIO, "write the result: %w", err)
	}
	return nil
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
	if c.env.Stdout != nil {
		if _, werr := c.env.Stdout.Write(out); werr == nil {
			return 1
		}
	}
	fmt.Fprintf(c.env.Stderr, "%s: %s\n", c.plugin.Name, out)
	return 1
}

func quote(s string) string { return strconv.Quote(s) }
