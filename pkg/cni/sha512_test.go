package cni

import (
	reference "crypto/sha512"
	"encoding/hex"
	"testing"
)

func TestSHA512(t *testing.T) {
	data := make([]byte, 600)
	for i := range data {
		data[i] = byte(i * 7)
		if got, want := sha512(data[:i]), reference.Sum512(data[:i]); got != want {
			t.Fatalf("%d bytes: %x instead of %x", i, got, want)
		}
	}
	sum := reference.Sum512([]byte("abc"))
	if got, want := Digest("abc", 21), hex.EncodeToString(sum[:])[:21]; got != want {
		t.Fatalf("%s instead of %s", got, want)
	}
}

func FuzzSHA512(f *testing.F) {
	f.Add([]byte("abc"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, want := sha512(data), reference.Sum512(data); got != want {
			t.Fatalf("%x instead of %x", got, want)
		}
	})
}
