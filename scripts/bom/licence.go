package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// permitted are the licenses that something in a binary under the Apache
// License 2.0 may have when its notice is shipped too.
var permitted = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// lawyer knows licenses by their texts.
type lawyer struct{ classifier *classifier.Classifier }

func newClassifier() (lawyer, error) {
	c, err := assets.DefaultClassifier()
	return lawyer{c}, err
}

// licenceOf names the licenses of the files.
func (l lawyer) licenceOf(files []noticeFile) (string, error) {
	var names []string
	for _, f := range files {
		for _, m := range l.classifier.Match([]byte(f.text)).Matches {
			if m.MatchType == "License" && !slices.Contains(names, m.Name) {
				names = append(names, m.Name)
			}
		}
	}
	if names == nil {
		return "", errors.New("no licence that is known")
	}
	for _, name := range names {
		if !slices.Contains(permitted, name) {
			return "", fmt.Errorf("licence %s, which is none of %s", name, strings.Join(permitted, ", "))
		}
	}
	return strings.Join(names, " AND "), nil
}
