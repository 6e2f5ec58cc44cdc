package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Cached is what libcni remembers of an attachment, for CHECK and DEL.
type Cached struct {
	cni.Attachment
	File         string
	Netns        string // empty where libcni, before 1.2, writes none, and the result none either
	Config       []byte // the list
	Args         [][2]string
	Capabilities map[string]any
	RawResult    json.RawMessage
	Since        time.Time // when the file was written
}

// Cached are the attachments in libcni's cache, in the order of their files. What could be read comes beside an error.
func (n Node) Cached() (all []Cached, err error) {
	dir := filepath.Join(n.CacheDir, "results")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		c, err := readCached(filepath.Join(dir, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // it ended meanwhile
		case err != nil:
			errs = append(errs, err)
		case c.ContainerID != "":
			all = append(all, c)
		}
	}
	return all, errors.Join(errs...)
}

func readCached(file string) (Cached, error) {
	info, err := os.Stat(file)
	if err != nil {
		return Cached{}, err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return Cached{}, err
	}
	var wire struct {
		Kind           string          `json:"kind"`
		ContainerID    string          `json:"containerId"`
		Config         []byte          `json:"config"`
		IfName         string          `json:"ifName"`
		NetworkName    string          `json:"networkName"`
		Netns          string          `json:"netns"`
		Args           [][2]string     `json:"cniArgs"`
		CapabilityArgs map[string]any  `json:"capabilityArgs"`
		Result         json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return Cached{}, fmt.Errorf("%s: %w", file, err)
	}
	c := Cached{
		Attachment: cni.Attachment{Network: wire.NetworkName, ContainerID: wire.ContainerID, IfName: wire.IfName},
		File:       file, Netns: wire.Netns, Config: wire.Config, Args: wire.Args, Capabilities: wire.CapabilityArgs,
		RawResult: wire.Result, Since: info.ModTime(),
	}
	if c.Netns == "" {
		i, _ := c.Result().ContainerInterface(c.IfName)
		c.Netns = i.Sandbox
	}
	return c, nil
}

// Result is what ADD returned; nil where it cannot be read.
func (c Cached) Result() *cni.Result {
	var doc struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(c.RawResult, &doc) != nil {
		return nil
	}
	result, err := cni.DecodeResult(c.RawResult, doc.CNIVersion)
	if err != nil {
		return nil
	}
	return result
}

// Pod is the pod whose the attachment is: namespace/name, the name of podman's container, or empty.
func (c Cached) Pod() string {
	var namespace, name string
	for _, arg := range c.Args {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			namespace = arg[1]
		case "K8S_POD_NAME":
			name = arg[1]
		}
	}
	if namespace == "" || name == "" {
		return name
	}
	return namespace + "/" + name
}
