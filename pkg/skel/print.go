package skel

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// versionTimeout is the time limit for reading the version. A caller may keep standard input open and send nothing.
const versionTimeout = 2 * time.Second

// answerVersion answers VERSION, in the version of the input (specification, section 5).
func (c *call) answerVersion() error {
	out, _ := json.Marshal(struct { // cannot fail
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{c.readVersion(), cni.Versions()})
	return c.print(append(out, '\n'))
}

// readVersion returns the cniVersion of the configuration on standard input, or the newest version if it has none.
func (c *call) readVersion() string {
	var in struct {
		CNIVersion string `json:"cniVersion"`
	}
	stdin := c.env.Stdin
	if f, ok := stdin.(*os.File); ok {
		stdin = timedFile{f, time.Now().Add(versionTimeout)}
	}
	_ = json.NewDecoder(io.LimitReader(stdin, lenientMax)).Decode(&in) // invalid input has no version
	return cmp.Or(in.CNIVersion, cni.Newest)
}

// timedFile is a file whose Read fails after a deadline.
type timedFile struct {
	*os.File
	deadline time.Time
}

// Read implements io.Reader.
func (f timedFile) Read(p []byte) (int, error) {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	for {
		switch n, err := unix.Poll(fds, int(max(0, time.Until(f.deadline).Milliseconds()))); {
		case n == 0 && err == nil:
			return 0, os.ErrDeadlineExceeded
		case !errors.Is(err, unix.EINTR): // readable, or Poll failed: Read returns data or an error
			return f.File.Read(p)
		}
	}
}

func (c *call) printResult(res *cni.Result) error {
	if res == nil {
		return errors.New("the plugin returned no result")
	}
	out, err := res.Encode(c.version)
	if err != nil {
		return err
	}
	c.result = res
	return c.print(out)
}

// print writes a document to standard output in one write.
func (c *call) print(doc []byte) error {
	if c.isPartial {
		return errors.New("standard output cannot be written")
	}
	n, err := c.env.Stdout.Write(doc)
	if err == nil {
		return nil
	}
	c.isPartial = n > 0
	return cni.Errorf(cni.CodeIO, "standard output: %w", err)
}

// fail prints the error object, on standard error if standard output fails, and returns the exit status.
func (c *call) fail(err error) int {
	out := errorObject(err).Encode(cmp.Or(c.version, cni.Newest))
	if c.print(out) != nil {
		fmt.Fprintf(c.env.Stderr, "%s: %s\n", c.plugin.Name, out)
	}
	return 1
}
