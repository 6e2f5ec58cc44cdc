module github.com/hawser-cni/plugins/test

go 1.26.0

replace github.com/hawser-cni/plugins => ../

require (
	github.com/containernetworking/cni v1.3.1
	golang.org/x/sys v0.49.0
)

require (
	go.opentelemetry.io/otel v1.29.0 // indirect
	go.opentelemetry.io/otel/trace v1.29.0 // indirect
)
