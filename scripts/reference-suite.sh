#!/bin/bash
# reference-suite.sh [PLUGIN...]: runs the reference's own tests of the named plugins (bridge and host-device) with
# programs in place of the functions that the tests call. Prints how many cases pass with the reference's program and
# with Hawser's, and each case that fails only with Hawser's; docs/compat.md and docs/differences.md explain these
# cases. Needs root. Cases of VLANs, VRFs and dummy devices may need scripts/test-vm.sh scripts/reference-suite.sh.
#
# Environment:
#   FOCUS  regular expression that selects cases
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- bridge host-device
theirs=$(scripts/reference.sh)
[ -d "$theirs" ] || exit 1
version=${theirs##*reference-}
[ -x bin/one/bridge ] || scripts/build.sh
sum=$(sha256sum scripts/reference-suite.sh)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hawser/suite-$version-${sum:0:8}
export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0

# shim PLUGIN DIR makes cmdAdd, cmdDel, cmdCheck and cmdStatus in DIR run the plugin's program. firewall's tests connect
# only their own process to their private D-Bus, so the program gets its address in the environment.
shim() {
	find "$2" -maxdepth 1 -name '*.go' ! -name '*_test.go' -exec \
		sed -i -E 's/^func cmd(Add|Del|Check|Status)\(/func unused\1(/' {} +
	sed -i 's/^\t\ttestConn = conn$/&\n\t\tGinkgoT().Setenv("DBUS_SYSTEM_BUS_ADDRESS", busAddr)/' "$2"/*_test.go
	cat >"$2/shim.go" <<-END
		package main

		import (
			"bytes"
			"encoding/json"
			"errors"
			"fmt"
			"os"
			"os/exec"

			"github.com/containernetworking/cni/pkg/skel"
			"github.com/containernetworking/cni/pkg/types"
		)

		func run(command string, args *skel.CmdArgs) error {
			var out bytes.Buffer
			dir := os.Getenv("PLUGINS")
			cmd := exec.Command(dir + "/$1")
			cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+args.ContainerID, "CNI_NETNS="+args.Netns,
				"CNI_IFNAME="+args.IfName, "CNI_ARGS="+args.Args, "CNI_PATH="+dir)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(args.StdinData), &out, os.Stderr
			err := cmd.Run()
			if err == nil {
				_, err = os.Stdout.Write(out.Bytes())
				return err
			}
			e := &types.Error{}
			if json.Unmarshal(out.Bytes(), e) == nil && e.Msg != "" {
				return errors.New(e.Error()) // not *types.Error: some cases compare the type
			}
			return fmt.Errorf("%w: %s", err, out.String())
		}

		func cmdAdd(args *skel.CmdArgs) error    { return run("ADD", args) }
		func cmdDel(args *skel.CmdArgs) error    { return run("DEL", args) }
		func cmdCheck(args *skel.CmdArgs) error  { return run("CHECK", args) }
		func cmdStatus(args *skel.CmdArgs) error { return run("STATUS", args) }
	END
}

# prebuild DIR makes the suite in DIR use existing programs instead of building them: plugins from the directory in
# PLUGINS, and others from DIR, where prebuild builds them.
prebuild() {
	local suite built
	for suite in "$1"/*_suite_test.go; do
		grep -q 'gexec\.Build(' "$suite" || continue
		mapfile -t built < <(sed -n 's/.*gexec\.Build("\(.*\)").*/\1/p' "$suite")
		scripts/retry.sh go build -C "$1" -o "$1/" "${built[@]}"
		sed -i 's/gexec\.Build(/programAt(/' "$suite"
		cat >"$1/shim_test.go" <<-END
			$(grep '^package ' "$suite")

			import (
				"os"
				"path/filepath"
			)

			func programAt(pkg string) (string, error) {
				name := filepath.Base(pkg)
				file := filepath.Join(os.Getenv("PLUGINS"), name)
				if _, err := os.Stat(file); err == nil {
					return file, nil
				}
				return filepath.Abs(name)
			}
		END
	done
}

# list_failures PLUGIN DIR prints, sorted, the cases that fail with the programs in DIR. It writes the numbers of
# passed and failed cases to stderr.
list_failures() {
	local out
	# shellcheck disable=SC2016 # for the inner shell
	out=$(PLUGINS=$2 PATH=$2:$PATH unshare -n -m bash -euc '
		mkdir -p /var/lib/cni
		mount -t tmpfs tmpfs /run
		mount -t tmpfs tmpfs /var/lib/cni
		ip link set lo up
		cd "$0"
		exec ./suite.test -ginkgo.no-color -ginkgo.focus "$1"' "$cache/$1" "${FOCUS:-}" 2>&1) || true
	echo "$2: $(grep -oE '[0-9]+ Passed \| [0-9]+ Failed' <<<"$out" || echo 'no case ran')" >&2
	sed -n 's/^ *\[FAIL\] //p' <<<"$out" | sort -u
}

for plugin; do
	if [ ! -d "$cache/$plugin" ]; then
		work=$(mktemp -d)
		trap 'rm -rf "$work"' EXIT
		source=$(scripts/retry.sh go mod download -json "github.com/containernetworking/plugins@$version" |
			sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
		cp -r "$source" "$work/source"
		chmod -R u+w "$work/source"
		dir=$(echo "$work"/source/plugins/*/"$plugin")
		shim "$plugin" "$dir"
		prebuild "$dir"
		scripts/retry.sh go test -C "$dir" -c -vet=off -o suite.test .
		mkdir -p "$cache"
		mv -T "$dir" "$cache/$plugin"
		rm -rf "$work"
	fi
	echo "== $plugin"
	comm -13 <(list_failures "$plugin" "$theirs") <(list_failures "$plugin" "$PWD/bin/one")
done
