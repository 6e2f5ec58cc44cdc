package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"regexp"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// unknown is SPDX's value of a field about which a document makes no statement.
const unknown = "NOASSERTION"

// spdx writes the bill as SPDX 2.3.
func (b bill) spdx(out io.Writer) error {
	root := pack(product, b.version, b.purl)
	root.PackageSupplier = &common.Supplier{SupplierType: "Organization", Supplier: "Hawser"}
	root.PackageLicenseConcluded, root.PackageLicenseDeclared = licence, licence
	root.PrimaryPackagePurpose = "APPLICATION"
	doc := spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName: product + "-" + b.version,
		DocumentNamespace: fmt.Sprintf("https://%s/spdx/%s-%s-%s", b.binaries[0].main, product, escape(b.version),
			b.number),
		CreationInfo: &spdx.CreationInfo{Created: b.created, Creators: []common.Creator{
			{CreatorType: "Organization", Creator: "Hawser"}, {CreatorType: "Tool", Creator: "scripts/bom"}}},
		Packages: []*spdx.Package{root},
	}
	relate := func(from common.ElementID, kind string, to common.ElementID) {
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.DocElementID{ElementRefID: from}, RefB: common.DocElementID{ElementRefID: to},
			Relationship: kind})
	}
	relate(doc.SPDXIdentifier, common.TypeRelationshipDescribe, root.PackageSPDXIdentifier)
	for _, m := range b.modules {
		p := pack(m.path, m.release(), m.purl())
		p.PackageLicenseConcluded, p.PackageLicenseDeclared = m.licence, m.licence
		p.PrimaryPackagePurpose = "LIBRARY"
		if sum := m.sha256(); sum != "" {
			p.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: sum}}
		}
		doc.Packages = append(doc.Packages, p)
	}
	for _, bin := range b.binaries {
		f := &spdx.File{
			FileName: "./" + bin.name, FileSPDXIdentifier: identifier("File-" + bin.name),
			FileTypes: []string{"BINARY"}, Checksums: []common.Checksum{
				{Algorithm: common.SHA1, Value: hex.EncodeToString(bin.sha1[:])},
				{Algorithm: common.SHA256, Value: hex.EncodeToString(bin.sha256[:])}},
			LicenseConcluded: unknown, FileCopyrightText: unknown,
		}
		doc.Files = append(doc.Files, f)
		relate(root.PackageSPDXIdentifier, common.TypeRelationshipContains, f.FileSPDXIdentifier)
		for _, path := range bin.modules {
			relate(f.FileSPDXIdentifier, common.TypeRelationshipStaticLink, identifier("Package-"+path))
		}
	}
	return spdxjson.Write(&doc, out, spdxjson.Indent("  "))
}

// pack returns a package whose origin is given by its package URL.
func pack(name, version, purl string) *spdx.Package {
	return &spdx.Package{
		PackageName: name, PackageSPDXIdentifier: identifier("Package-" + name), PackageVersion: version,
		PackageDownloadLocation: unknown, PackageCopyrightText: unknown,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: purl}},
	}
}

var foreign = regexp.MustCompile(`[^a-zA-Z0-9.-]`)

// identifier returns a name as an SPDX identifier.
func identifier(name string) common.ElementID {
	return common.ElementID(foreign.ReplaceAllString(name, "-"))
}
