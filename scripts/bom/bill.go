package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	product = "hawser-cni"
	licence = "Apache-2.0"
)

// bill is the content of a bill of materials for the binaries of one architecture. It does not depend on place or time:
// its number is derived from the binaries, its time is SOURCE_DATE_EPOCH.
type bill struct {
	version, purl string // of the plugins
	number        string // a UUID
	created       string
	binaries      []binary
	modules       []module
}

func newBill(version string, binaries []binary, modules []module) (bill, error) {
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return bill{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	number := sha256.New()
	for _, b := range binaries {
		number.Write(b.sha256[:])
	}
	return bill{
		version: version, purl: purl(binaries[0].main, "v"+version), number: uuid(number.Sum(nil)),
		created: time.Unix(epoch, 0).UTC().Format(time.RFC3339), binaries: binaries, modules: modules,
	}, nil
}

// purl returns the package URL of a Go module.
func purl(path, version string) string { return "pkg:golang/" + path + "@" + escape(version) }

// escape returns a version in the form in which a URI can contain it.
func escape(version string) string { return strings.ReplaceAll(version, "+", "%2B") }

// release returns the module's version as bills of materials write it: without "go" for the standard library.
func (m module) release() string {
	if m.path == stdlib {
		return strings.TrimPrefix(m.version, "go")
	}
	return m.version
}

func (m module) purl() string { return purl(m.path, m.release()) }

// sha256 returns the checksum in go.sum in hexadecimal. It is empty for the standard library.
func (m module) sha256() string {
	sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.sum, "h1:"))
	if err != nil {
		return ""
	}
	return hex.EncodeToString(sum)
}

// uuid returns a UUID that is derived from a hash (RFC 9562, version 8).
func uuid(hash []byte) string {
	u := hash[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
