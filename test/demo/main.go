// Demo attaches three containers to a throw-away host through libcni, draws the
// network, proves it with traffic, takes it down and shows that nothing is left.
// It is started by scripts/demo.sh in network, mount and PID namespaces of its
// own. Its exit status is 1 when anything is not as it should be.
package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: demo PLUGIN-DIRECTORY CONFLIST")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo: FAILED:", err)
		os.Exit(1)
	}
	fmt.Println("\nAll of it is as it should be.")
}

func run(ctx context.Context, plugins, conflist string) error {
	net, err := load(plugins, conflist)
	if err != nil {
		return err
	}
	fmt.Printf("Hawser: three containers on a throw-away host (plugins from %s, CNI %s)\n", plugins,
		net.list.CNIVersion)
	if err := makeHost(net.hasFirewall()); err != nil {
		return err
	}
	before, err := snapshot()
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return net.tryWithoutFirewall(ctx) },
		func() error { return net.attach(ctx) },
		func() error { return draw(net) },
		func() error { return prove(net) },
		func() error { return net.check(ctx) },
		func() error { return net.detach(ctx) },
		func() error { return nothingLeft(before, net) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func title(text string) { fmt.Printf("\n── %s\n", text) }
