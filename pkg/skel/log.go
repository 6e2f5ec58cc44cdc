package skel

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// logVar is the variable that names the log. It wins over the key.
const logVar = "HAWSER_LOG"

// Keys are those that every plugin of this suite reads. A plugin embeds them in
// the struct of its configuration.
type Keys struct {
	Log string `json:"log" help:"file to which every call adds a line (none); HAWSER_LOG in the environment wins" schema:"format=path empty"`
}

// line is what one call adds to the log.
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
}

// readLogKey reads the key log. The variable wins, but what is wrong with the key
// is an error all the same.
func (c *call) readLogKey(raw json.RawMessage) error {
	var path string
	if len(raw) > 0 && json.Unmarshal(raw, &path) != nil {
		return cni.Refuse("log", raw, "is no string")
	}
	if path == "" {
		return nil
	}
	if !isLogPath(path) {
		return cni.Refuse("log", path, "is no plain absolute path of a file").
			Suggest("name a file by its absolute path, /var/log/hawser.log for example")
	}
	if c.logFile == "" {
		c.logFile = path
	}
	return nil
}

func isLogPath(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && path != "/"
}

// log adds the call to the log, if there is one. That it cannot be written is
// no reason to fail.
func (c *call) log(err error) {
	if c.logFile == "" {
		return
	}
	if failed := appendLine(c.logFile, c.line(err)); failed != nil {
		fmt.Fprintf(c.env.Stderr, "%s: log %q: %v; the call is not in the log\n", c.plugin.Name, c.logFile, failed)
	}
}

// appendLine adds a line to a file in one write, so that the lines of plugins side
// by side stay whole. A symbolic link is not followed, and what is no regular file
// not written to: whoever may write to the directory chooses no file for root.
func appendLine(path string, l line) error {
	if !isLogPath(path) {
		return errors.New("is no plain absolute path of a file")
	}
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, errors.New("is no regular file"))
	}
	_, err = f.Write(append(data, '\n'))
	return err
}

func (c *call) line(err error) line {
	l := line{
		Time: c.began.UTC().Format("2006-01-02T15:04:05.000Z07:00"), PID: os.Getpid(),
		Plugin: c.plugin.Name, Version: version, Verb: c.vars["CNI_COMMAND"], CNIVersion: c.version,
		ContainerID: c.vars["CNI_CONTAINERID"], IfName: c.vars["CNI_IFNAME"],
		MS: float64(time.Since(c.began).Microseconds()) / 1000,
	}
	if c.req != nil {
		l.Network = c.req.Network
	}
	switch {
	case err != nil:
		e := describe(err) // without details: they may be another program's words
		l.Error = map[string]any{"code": e.Code, "msg": e.Msg}
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
