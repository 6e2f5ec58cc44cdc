module github.com/hawser-cni/plugins/scripts/bom

go 1.26.8

toolchain go1.26.11

require (
	github.com/CycloneDX/cyclonedx-go v0.12.0
	github.com/google/licenseclassifier/v2 v2.0.0
	github.com/in-toto/attestation v1.2.0
	github.com/openvex/go-vex v0.2.9
	github.com/spdx/tools-golang v0.5.7
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/anchore/go-struct-converter v0.1.0 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/package-url/packageurl-go v0.1.7 // indirect
	github.com/sergi/go-diff v1.4.0 // indirect
	golang.org/x/mod v0.43.0 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/telemetry v0.0.0-20261111153349-cdaf7e97dd7b // indirect
	golang.org/x/tools v0.52.0 // indirect
	golang.org/x/vuln v1.9.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

tool golang.org/x/vuln/cmd/govulncheck
