//go:build !amd64

package faults_test

var older = map[uint64]string{}
