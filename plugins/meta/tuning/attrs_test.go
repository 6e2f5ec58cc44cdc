package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = DescribeTable("is no backup:", func(text string) {
	_, err := decodeBackup([]byte(text))
	Expect(err).To(HaveOccurred())
},
	Entry("nothing", ""), Entry("half of it", "{\n \"mtu\": 15"), Entry("NULs", "\x00\x00"),
	Entry("a number that is none", `{"mtu":"x"}`), Entry("a number below zero", `{"txQLen":-1}`),
	Entry("a MAC address that is none", `{"mac":"x"}`), Entry("a list", `[]`),
)

var _ = DescribeTable("a backup", func(text string, want ...value) {
	Expect(decodeBackup([]byte(text))).To(Equal(want))
	Expect(string(encodeBackup(want))).To(Equal(text))
},
	Entry("of everything", "{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n"+
		" \"allmulti\": true,\n \"txQLen\": 1000\n}",
		value{Key: "mac", Value: "02:00:00:00:00:01"}, value{Key: "promisc", Value: "false"},
		value{Key: "mtu", Value: "1500"}, value{Key: "allmulti", Value: "true"}, value{Key: "txQLen", Value: "1000"}),
	Entry("of some", "{\n \"mtu\": 1500,\n \"txQLen\": 0\n}",
		value{Key: "mtu", Value: "1500"}, value{Key: "txQLen", Value: "0"}),
)
