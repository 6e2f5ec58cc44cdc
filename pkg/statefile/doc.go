// Package statefile is a locked directory whose files appear and change
// atomically, and Store, one JSON record for each attachment in such a directory.
//
// Whatever happens to the writer (kill, full disk, I/O error), a reader sees
// a file whole as it was before, whole as it is after, or not at all. A
// symbolic link inside the directory is never followed: every access goes
// through the directory's own descriptor and names exactly one entry.
//
// Nothing here calls fsync: the state kept this way describes what lives in
// the running kernel, and a power cut ends that as well.
package statefile
