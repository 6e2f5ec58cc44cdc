// Empty does nothing: what it costs is what the start of any Go program costs.
package main

func main() {}
