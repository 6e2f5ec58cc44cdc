package main

import (
	"encoding/hex"
	"io"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// cycloneDX writes the bill as CycloneDX 1.6.
func (b bill) cycloneDX(out io.Writer) error {
	root := cdx.Component{
		BOMRef: b.purl, Type: cdx.ComponentTypeApplication, Name: product, Version: b.version,
		PackageURL: b.purl, Licenses: licences(licence),
	}
	var components []cdx.Component
	var graph []cdx.Dependency
	var files []string
	refs := map[string]string{}
	for _, m := range b.modules {
		c := m.component()
		refs[m.path] = c.BOMRef
		components = append(components, c)
	}
	for _, bin := range b.binaries {
		c := cdx.Component{
			BOMRef: "binary:" + bin.arch + "/" + bin.name, Type: cdx.ComponentTypeFile, Name: bin.name,
			Version: b.version, Hashes: sha256Of(hex.EncodeToString(bin.sha256[:])),
		}
		var on []string
		for _, path := range bin.modules {
			on = append(on, refs[path])
		}
		components = append(components, c)
		graph = append(graph, cdx.Dependency{Ref: c.BOMRef, Dependencies: &on})
		files = append(files, c.BOMRef)
	}
	graph = append(graph, cdx.Dependency{Ref: root.BOMRef, Dependencies: &files})
	bom := cdx.NewBOM()
	bom.SerialNumber = "urn:uuid:" + b.number
	bom.Metadata = &cdx.Metadata{Timestamp: b.created, Component: &root}
	bom.Components, bom.Dependencies = &components, &graph
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
}

func (m module) component() cdx.Component {
	c := cdx.Component{
		BOMRef: m.purl(), Type: cdx.ComponentTypeLibrary, Name: m.path, Version: m.release(),
		PackageURL: m.purl(), Licenses: licences(strings.Split(m.licence, " AND ")...),
	}
	if sum := m.sha256(); sum != "" {
		c.Hashes = sha256Of(sum)
	}
	return c
}

func sha256Of(sum string) *[]cdx.Hash {
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}}
}

func licences(ids ...string) *cdx.Licenses {
	var out cdx.Licenses
	for _, id := range ids {
		out = append(out, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	return &out
}
