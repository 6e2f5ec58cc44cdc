package skel

// SetVersion makes this the version of the suite until the function that it returns is called.
func SetVersion(v string) (restore func()) {
	old := stamp
	stamp = Stamp + v + ";"
	return func() { stamp = old }
}
