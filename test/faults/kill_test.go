package faults_test

import (
	"cmp"
	"errors"
	"fmt"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// killing is one case: where ADD or DEL is killed, and what cleans up.
type killing struct {
	command string
	fault   fault
	remedy  string // DEL or GC
}

var _ = Describe("a kill at every call", Label("kernel", "killed"), func() {
	for _, s := range scenarios() {
		It("of "+s.Name+" loses nothing", func() {
			nstest.Need(s.Needs...)
			l := learn(s)
			each(l, killings(l))
		})
	}
})

// killings are all cases of a scenario. A kill between two calls that change
// nothing is like one before the next that does, so those are enough;
// HAWSER_FAULTS=all takes each call.
func killings(l *lesson) (cases []killing) {
	for _, command := range l.commands() {
		f := fault{Changes: !everything()}
		for _, c := range l.calls(command, f) {
			f.At = c.N
			f.Kill, f.Alone = true, false
			cases = append(cases, killing{command, f, "DEL"}, killing{command, f, "GC"})
			if !c.Main {
				f.Kill, f.Alone = false, true
				cases = append(cases, killing{command, f, "DEL"})
			}
		}
	}
	return cases
}

// play kills and cleans up, and sees that nothing is left, and nothing in the way.
func (k killing) play(n *node) (hit bool, err error) {
	out, prev, err := n.disturbed(k.command, k.fault)
	if err != nil {
		return false, err
	}
	if out.Hit == nil { // it was over sooner this time
		return false, n.del(cmp.Or(prev, out.Stdout))
	}
	if err := k.recover(n, prev); err != nil {
		return true, fmt.Errorf("%s at call %s:\n        %w", k, out.Hit, err)
	}
	return true, nil
}

func (k killing) String() string {
	if k.fault.Alone {
		return k.command + ", killed without its children, then " + k.remedy
	}
	return k.command + ", killed, then " + k.remedy
}

func (k killing) recover(n *node, prev string) error {
	if err := n.quiet(k.remedy, prev); err != nil {
		return err
	}
	if k.remedy == "GC" && n.Inside {
		return cmp.Or(n.isCleanOutside(), errRetire)
	}
	if err := n.isClean(); err != nil || k.command == "DEL" || k.remedy == "GC" {
		return err // the next case begins with an ADD
	}
	result, err := n.add()
	if err != nil {
		return err
	}
	if err := errors.Join(n.del(result), n.isCleanAgain()); err != nil {
		return fmt.Errorf("after the next ADD and DEL: %w", err)
	}
	return nil
}
