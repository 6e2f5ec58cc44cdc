module github.com/hawser-cni/plugins/scripts/man

go 1.26.8

toolchain go1.26.11

require github.com/cpuguy83/go-md2man/v2 v2.0.7

require github.com/russross/blackfriday/v2 v2.1.0 // indirect
