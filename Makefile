.DEFAULT_GOAL := build
.PHONY: build demo test test-all test-one test-vm test-runtimes test-cluster test-managers test-machines test-release reliability lint fuzz bench schema install image release clean help

build:   ; @scripts/build.sh    #: build every plugin, and hawser with all of them, into bin/
demo:    ; @scripts/demo.sh     #: three containers on a throw-away host exchange traffic (root)
test:    ; @NSTEST_QUICK=1 scripts/test.sh  #: test each promise of docs/contract.md once, in minutes; lists what it skipped
test-all: ; @scripts/test.sh    #: run every spec that this machine can run; lists what it skipped
test-one: ; @scripts/test-one.sh  #: run the specs of whole plugin lists with all plugins as one program
test-vm: ; @scripts/test-vm.sh  #: run the specs labelled "kernel", and power losses, on Debian's kernel in QEMU; KERNEL=5.10, 6.1 or 6.12 tests each feature on it
test-runtimes: ; @scripts/test-runtimes.sh  #: run the plugins under real runtimes (root; installs them); ALL=1 adds the slower ones
test-cluster: ; @scripts/test-cluster.sh  #: test cluster-local with an API server and etcd; compiles that server once, in minutes
test-managers: ; @scripts/test-managers.sh  #: run pods on a host that udev, NetworkManager and systemd-networkd manage (root)
test-machines: ; @scripts/test-machines.sh  #: run make test-all on three differently prepared Debian machines (root; hours)
test-release: ; @scripts/test-release.sh  #: test install, release and image in copies of this tree
reliability: ; @scripts/reliability.sh  #: test every kill and error, load, plugin lists and power losses; prints figures (root; some hours)
lint:    ; @scripts/lint.sh     #: run gofmt, vet, staticcheck and shellcheck; check prose, licenses and vulnerabilities
fuzz:    ; @scripts/fuzz.sh     #: run each fuzz target for FUZZTIME (30s), several at a time
bench:   ; @scripts/bench.sh    #: compare with the newest and Debian's reference plugins, call by call (root); QUICK=1, BENCH=regexp, BEFORE=DIR
schema:  ; @scripts/schema.sh   #: write docs/schema from the types that the plugins decode into
install: ; @scripts/install.sh  #: install into $(DESTDIR)$(PREFIX) (/opt/cni/bin); SEPARATE=1 installs a program for each plugin
image:   ; @scripts/image.sh    #: build an OCI image that installs the plugins, for ARCHS, into dist/
release: ; @scripts/release.sh  #: build the source archive, tarballs, packages, image, SBOMs, provenance and checksums, for ARCHS, into dist/
clean:   ; @rm -rf bin dist     #: remove bin/ and dist/
help:    ; @scripts/help.sh     #: show this list
