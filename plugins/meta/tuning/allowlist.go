package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// allowList is the administrator's file that says which sysctls may be
// written. Each line that is not blank is a regular expression for keys as the
// configuration spells them; without ^ and $ it may match anywhere in the key.
// There are no comments. Without the file every key may be written, with an
// empty one none.
type allowList struct {
	Path string
}

// check refuses (code 7) the first setting that no line allows.
func (l allowList) check(settings []setting) error {
	if len(settings) == 0 {
		return nil
	}
	lines, exists, err := l.read()
	if err != nil || !exists {
		return err
	}
	for _, s := range settings {
		allowed := false
		for i := 0; i < len(lines) && !allowed; i++ {
			// A broken line after the one that matches has never kept anybody from working.
			line, err := l.compile(lines[i])
			if err != nil {
				return err
			}
			allowed = line.MatchString(s.Raw)
		}
		if !allowed {
			return bad(s.name(), s.Value, fmt.Sprintf("not allowed by %s, which allows %q", l.Path, lines))
		}
	}
	return nil
}

// verify finds broken lines.
func (l allowList) verify() error {
	lines, _, err := l.read()
	errs := []error{err}
	for _, line := range lines {
		_, err := l.compile(line)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (l allowList) compile(line string) (*regexp.Regexp, error) {
	expr, err := regexp.Compile(line)
	if err != nil {
		return nil, cni.Errorf(cni.CodeConfig, "%s: line %q: %w", l.Path, line, err)
	}
	return expr, nil
}

func (l allowList) read() (lines []string, exists bool, err error) {
	data, err := os.ReadFile(l.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("allow-list: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, true, nil
}
