package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Cached is libcni's record of an attachment, which a runtime needs for CHECK and DEL. It is zero without a record.
type Cached struct {
	File         string
	Written      time.Time // modification time of File
	Config       []byte    // the network list
	Args         [][2]string
	Capabilities map[string]any
	RawResult    json.RawMessage
}

// resultDirs returns the directories of libcni's cache that have a file for each attachment: libcni's own, multus' for
// the networks that it attaches, and cri-dockerd's.
func (n *Node) resultDirs() []string {
	return []string{n.CacheDir + "/results", n.CacheDir + "/multus/results", n.CacheDir + "/cache/results"}
}

// readCache returns the attachments in libcni's cache, in the order of their files. damaged has the files' errors.
func (n *Node) readCache() (all []*Attachment, damaged, err error) {
	var errs []error
	for _, dir := range n.resultDirs() {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		for _, e := range entries {
			if !e.Type().IsRegular() {
				continue
			}
			a, err := readCached(filepath.Join(dir, e.Name()))
			switch {
			case errors.Is(err, fs.ErrNotExist): // detached since the directory was read
			case err != nil:
				errs = append(errs, err)
			case a.ContainerID != "":
				all = append(all, a)
			}
		}
	}
	return all, errors.Join(errs...), nil
}

func readCached(file string) (*Attachment, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	var wire struct {
		ContainerID    string          `json:"containerId"`
		Config         []byte          `json:"config"`
		IfName         string          `json:"ifName"`
		NetworkName    string          `json:"networkName"`
		Netns          string          `json:"netns"` // libcni before 1.2 writes none
		Args           [][2]string     `json:"cniArgs"`
		CapabilityArgs map[string]any  `json:"capabilityArgs"`
		Result         json.RawMessage `json:"result"`
	}
	if err := readFile(file, func(data []byte) error { return json.Unmarshal(data, &wire) }); err != nil {
		return nil, err
	}
	a := &Attachment{
		Attachment: cni.Attachment{Network: wire.NetworkName, ContainerID: wire.ContainerID, IfName: wire.IfName},
		Netns:      wire.Netns, Since: info.ModTime(), Reference: true,
		Cached: Cached{File: file, Written: info.ModTime(), Config: wire.Config, Args: wire.Args,
			Capabilities: wire.CapabilityArgs, RawResult: wire.Result},
	}
	a.Pod = skel.PodOf(a.args())
	if a.Netns == "" {
		i, _ := a.Result().ContainerInterface(a.IfName)
		a.Netns = i.Sandbox
	}
	return a, nil
}

// damagedFile returns the attachment's file in libcni's cache if it could not be read, and "" otherwise.
func (n *Node) damagedFile(a *Attachment) string {
	if a.File != "" {
		return ""
	}
	for _, dir := range n.resultDirs() {
		file := filepath.Join(dir, a.Network+"-"+a.ContainerID+"-"+a.IfName)
		if _, err := os.Lstat(file); err == nil {
			return file
		}
	}
	return ""
}

// Result returns the cached result of ADD. The result is empty if none is cached or it cannot be decoded.
func (c Cached) Result() *cni.Result {
	result, _ := c.decodeResult()
	return result
}

// decodeResult returns Result, and whether it is of a version whose results have no interfaces.
func (c Cached) decodeResult() (result *cni.Result, isOld bool) {
	var doc struct {
		CNIVersion string `json:"cniVersion"`
	}
	_ = json.Unmarshal(c.RawResult, &doc) // DecodeResult returns the error
	if result, err := cni.DecodeResult(c.RawResult, doc.CNIVersion); err == nil {
		return result, doc.CNIVersion == "0.1.0" || doc.CNIVersion == "0.2.0"
	}
	return &cni.Result{}, false
}

func (c Cached) args() string {
	var args []string
	for _, arg := range c.Args {
		args = append(args, arg[0]+"="+arg[1])
	}
	return strings.Join(args, ";")
}
