package plugintest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Verdict is what must be true of every answer, whatever the call was: exit
// status 0 with a result (ADD, VERSION) or with nothing, or 1 with an error
// object; one JSON document; no panic.
func (a Answer) Verdict(command string) error {
	if strings.Contains(a.Stdout+a.Stderr, "goroutine ") {
		return errors.New("a panic")
	}
	if a.Code == 0 && command != "ADD" && command != "VERSION" {
		if a.Stdout != "" {
			return errors.New("something on standard output")
		}
		return nil
	}
	var version struct{ CNIVersion string }
	d := json.NewDecoder(strings.NewReader(a.Stdout))
	if err := d.Decode(&version); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("more than one document: %v", err)
	}
	switch {
	case a.Code > 1:
		return fmt.Errorf("exit status %d", a.Code)
	case command == "VERSION" && a.Code == 0:
		return nil // it repeats the version that it was asked in
	case !slices.Contains(cni.Versions(), version.CNIVersion):
		return fmt.Errorf("cniVersion %q", version.CNIVersion)
	case a.Code == 0:
		_, err := cni.DecodeResult([]byte(a.Stdout), "")
		return err
	}
	if e, ok := cni.DecodeError([]byte(a.Stdout)); !ok || e.Msg == "" {
		return errors.New("no error object")
	}
	return nil
}
