// Command vex completes the OpenVEX document that govulncheck writes with the author, the product, the packages as the
// product's SBOM names them, and the action that users can take.
//
//	govulncheck -format openvex ... | vex -product PURL -author NAME -database ADDRESS
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/openvex/go-vex/pkg/vex"
)

// action is the action statement, which OpenVEX requires for an affected product.
const action = "Update to a newer release; SECURITY.md says when fixes are released."

// asInSBOM converts govulncheck's package URLs of modules to those in the SBOM.
var asInSBOM = strings.NewReplacer("%2F", "/", "pkg:golang/stdlib@v", "pkg:golang/std@", "+", "%2B")

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "vex:", err)
		os.Exit(1)
	}
}

func run(args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("vex", flag.ContinueOnError)
	product := flags.String("product", "", "package URL of the checked product")
	author := flags.String("author", "", "author of the document")
	database := flags.String("database", "", "vulnerability database that was used")
	if err := flags.Parse(args); err != nil {
		return err
	}
	data, err := io.ReadAll(stdin)
	if err != nil {
		return err
	}
	doc, err := vex.Parse(data)
	if err != nil {
		return err
	}
	doc.Author = *author
	doc.Tooling += " with " + *database
	if doc.Statements == nil {
		doc.Statements = []vex.Statement{}
	}
	for i := range doc.Statements {
		s := &doc.Statements[i]
		for p := range s.Products {
			s.Products[p].ID = *product
			for c := range s.Products[p].Subcomponents {
				sub := &s.Products[p].Subcomponents[c]
				sub.ID = asInSBOM.Replace(sub.ID)
			}
		}
		if s.Status == vex.StatusAffected {
			s.ActionStatement = action
		}
		if err := s.Validate(); err != nil {
			return fmt.Errorf("%s: %w", s.Vulnerability.Name, err)
		}
	}
	doc.ID = "" // govulncheck set a hash of its own output
	if _, err := doc.GenerateCanonicalID(); err != nil {
		return err
	}
	return doc.ToJSON(stdout)
}
