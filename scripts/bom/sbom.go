package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbomOf is the bill of materials of the binaries of one architecture, in
// CycloneDX 1.6. Nothing in it depends on where or when it is made: its number
// comes from its contents, its time from SOURCE_DATE_EPOCH.
func sbomOf(version string, binaries []binary, modules []module) ([]byte, error) {
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	own := binaries[0].main
	root := cdx.Component{
		BOMRef: purl(own, "v"+version), Type: cdx.ComponentTypeApplication, Name: "hawser-cni", Version: version,
		PackageURL: purl(own, "v"+version), Licenses: licences("Apache-2.0"),
	}
	var components []cdx.Component
	var graph []cdx.Dependency
	var files []string
	number := sha256.New()
	refs := map[string]string{}
	for _, m := range modules {
		c := m.component()
		refs[m.path] = c.BOMRef
		components = append(components, c)
	}
	for _, b := range binaries {
		number.Write(b.sha256[:])
		c := cdx.Component{
			BOMRef: "binary:" + b.arch + "/" + b.name, Type: cdx.ComponentTypeFile, Name: b.name, Version: version,
			Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(b.sha256[:])}},
		}
		var on []string
		for _, path := range b.modules {
			on = append(on, refs[path])
		}
		components = append(components, c)
		graph = append(graph, cdx.Dependency{Ref: c.BOMRef, Dependencies: &on})
		files = append(files, c.BOMRef)
	}
	graph = append(graph, cdx.Dependency{Ref: root.BOMRef, Dependencies: &files})
	bom := cdx.NewBOM()
	bom.SerialNumber = serial(number.Sum(nil))
	bom.Metadata = &cdx.Metadata{Timestamp: time.Unix(epoch, 0).UTC().Format(time.RFC3339), Component: &root}
	bom.Components, bom.Dependencies = &components, &graph
	var out bytes.Buffer
	err = cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

func (m module) component() cdx.Component {
	version := m.version
	if m.path == stdlib {
		version = strings.TrimPrefix(version, "go")
	}
	ref := purl(m.path, version)
	c := cdx.Component{
		BOMRef: ref, Type: cdx.ComponentTypeLibrary, Name: m.path, Version: version,
		PackageURL: ref, Licenses: licences(strings.Split(m.licence, " AND ")...),
	}
	sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.sum, "h1:"))
	if err == nil && len(sum) == sha256.Size {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	return c
}

// purl is the package URL of a Go module.
func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}

func licences(ids ...string) *cdx.Licenses {
	var out cdx.Licenses
	for _, id := range ids {
		out = append(out, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	return &out
}

// serial makes a name-based UUID of a hash (RFC 9562, version 8).
func serial(hash []byte) string {
	u := hash[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
