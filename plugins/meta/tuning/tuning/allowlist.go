package tuning

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// allowList is the path of the administrator's list of sysctls that may be written. Each non-empty line is a regular
// expression for keys as the configuration spells them. If the file does not exist, all keys may be written.
type allowList string

// check returns an error (code 7) for the first setting that no line allows.
func (l allowList) check(settings []setting) error {
	if len(settings) == 0 {
		return nil
	}
	lines, err := l.read()
	if err != nil {
		return err
	}
	for _, s := range settings {
		allowed := false
		for i := 0; i < len(lines) && !allowed; i++ {
			// The lines are compiled one by one, because an invalid line after the matching one has never been an
			// error.
			line, err := l.compile(lines[i])
			if err != nil {
				return err
			}
			allowed = line.MatchString(s.Raw)
		}
		if !allowed {
			return refuse(s.name(), s.Value, fmt.Sprintf("not allowed by %s, which allows %q", l, lines))
		}
	}
	return nil
}

// verify returns an error for each line that is not a regular expression.
func (l allowList) verify() error {
	lines, err := l.read()
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
		return nil, cni.Errorf(cni.CodeConfig, "%s: line %q: %w", l, line, err)
	}
	return expr, nil
}

// read returns the non-empty lines. If the file does not exist, it returns one line that matches every key.
func (l allowList) read() (lines []string, err error) {
	data, err := os.ReadFile(string(l))
	if errors.Is(err, fs.ErrNotExist) {
		return []string{""}, nil // matches every key
	}
	if err != nil {
		return nil, fmt.Errorf("allow-list: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, nil
}
