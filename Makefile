.DEFAULT_GOAL := build
.PHONY: build demo test test-all test-one test-vm test-runtimes test-cluster test-managers test-machines test-release reliability lint fuzz bench schema install image release clean help

build:   ; @scripts/build.sh    #: compile every plugin into bin/
demo:    ; @scripts/demo.sh     #: three containers on a throw-away host, proved by traffic (root)
test:    ; @NSTEST_QUICK=1 scripts/test.sh  #: each promise of docs/contract.md once, in minutes; says what it skipped
test-all: ; @scripts/test.sh    #: every spec that this machine can run; says what it skipped
test-one: ; @scripts/test-one.sh  #: the specs of whole lists, with all plugins as one program
test-vm: ; @scripts/test-vm.sh  #: the specs labelled "kernel", and losses of power, on Debian's kernel in QEMU; KERNEL=5.10, 6.1 or 6.12: each feature on it
test-runtimes: ; @scripts/test-runtimes.sh  #: the plugins under real runtimes (root; installs them); ALL=1 for all
test-cluster: ; @scripts/test-cluster.sh  #: cluster-local on an API server and etcd; compiles that server, minutes once
test-managers: ; @scripts/test-managers.sh  #: pods on a host that udev, NetworkManager and systemd-networkd manage (root)
test-machines: ; @scripts/test-machines.sh  #: make test-all on three Debian machines that are prepared differently (root; hours)
test-release: ; @scripts/test-release.sh  #: install, release and image, from copies of this tree
reliability: ; @scripts/reliability.sh  #: every kill and error, load, chains, losses of power, with figures (root; some hours)
lint:    ; @scripts/lint.sh     #: gofmt, vet, staticcheck, prose, shellcheck, licenses, vulnerabilities
fuzz:    ; @scripts/fuzz.sh     #: each fuzz target for FUZZTIME (30s), some at a time
bench:   ; @scripts/bench.sh    #: against the reference, newest and Debian's, call by call (root); QUICK=1, BENCH=regexp, BEFORE=DIR
schema:  ; @scripts/schema.sh   #: write docs/schema from the types that the plugins decode into
install: ; @scripts/install.sh  #: into $(DESTDIR)$(PREFIX) (/opt/cni/bin); SEPARATE=1: a file for each plugin
image:   ; @scripts/image.sh    #: an OCI image that installs the plugins, for ARCHS, into dist/
release: ; @scripts/release.sh  #: source, tarballs, packages, the image, SBOMs, provenance and sums, for ARCHS, into dist/
clean:   ; @rm -rf bin dist     #: remove bin/ and dist/
help:    ; @scripts/help.sh     #: this list
