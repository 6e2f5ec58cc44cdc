package cni

import (
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Attachment names one interface of one container on one network (specification,
// section 3). Everything that a plugin leaves on the host belongs to one attachment.
type Attachment struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

const (
	// hashLen is how many hex digits identify an attachment: 64 bits.
	hashLen = 16
	// markMax is the longest comment that nft(8) reads back, in bytes.
	markMax = 128
	// networkMax is the longest network name that a mark has in full, in bytes: GC
	// compares the name, so markMax must not cut it.
	networkMax = 64
)

// Hash identifies the attachment in names of kernel objects and files: 16 lower-case hex digits. The parts are hashed
// with their lengths: ("ab", "c") is not ("a", "bc").
func (a Attachment) Hash() string { return digest(a.Network, a.ContainerID, a.IfName) }

func isHash(s string) bool { return len(s) == hashLen && strings.Trim(s, "0123456789abcdef") == "" }

// Mark is what a link's alias or an nftables comment says of the owner: Hash, network, container ID and interface, in
// printable ASCII. It has at most 128 bytes: container ID and interface are for people and may be cut.
func (a Attachment) Mark() string {
	mark := a.Hash() + " " + networkLabel(a.Network) + " " + a.ContainerID + " " + strings.Map(plain, a.IfName)
	return mark[:min(len(mark), markMax)]
}

// Owns reports whether mark was written by this attachment.
func (a Attachment) Owns(mark string) bool {
	hash, _, _ := strings.Cut(mark, " ")
	return hash == a.Hash()
}

// NetworkHash is a number for the network, for kernel objects that have no room for a
// mark. It is never 0, and below 2^31, beyond which ip(8) knows no group.
func NetworkHash(network string) uint32 {
	sum := sha512.Sum512([]byte(network))
	return binary.BigEndian.Uint32(sum[:])&0x7fffffff | 1
}

func (a Attachment) String() string {
	return fmt.Sprintf("network %q, container %q, interface %q", a.Network, a.ContainerID, a.IfName)
}

// networkLabel is the network's name. A long one's beginning and hash are joined by a character that no name has.
func networkLabel(network string) string {
	if len(network) <= networkMax {
		return network
	}
	return network[:networkMax-hashLen-1] + "~" + digest(network)
}

// plain replaces what a comment cannot hold: nft(8) cannot read a quote back.
func plain(r rune) rune {
	if r <= ' ' || r > '~' || r == '"' || r == '\\' {
		return '?'
	}
	return r
}

func digest(parts ...string) string {
	var all []byte
	for _, p := range parts {
		all = fmt.Appendf(all, "%d:%s", len(p), p)
	}
	return Digest(string(all), hashLen)
}

// Digest returns the first digits, of at most 128, of the SHA-512 of a text, in lower-case hexadecimal.
func Digest(text string, digits int) string {
	sum := sha512.Sum512([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}

// Set holds the attachments of one network that are still valid. Everything else of the network is garbage.
type Set struct {
	network string
	all     []Attachment
	hashes  map[string]bool
}

// NewSet returns the set of the valid attachments of network; they need not name it.
func NewSet(network string, valid []Attachment) Set {
	s := Set{network: network, hashes: map[string]bool{}}
	for _, a := range valid {
		a.Network = network
		s.all = append(s.all, a)
		s.hashes[a.Hash()] = true
	}
	return s
}

// Network is the network whose attachments the set holds.
func (s Set) Network() string { return s.network }

// All returns the valid attachments.
func (s Set) All() []Attachment { return s.all }

// Has reports whether a is valid.
func (s Set) Has(a Attachment) bool { return s.hashes[a.Hash()] }

// Excludes reports whether a is of the network and not valid.
func (s Set) Excludes(a Attachment) bool { return a.Network == s.network && !s.Has(a) }

// HasContainer reports whether any interface of the container is valid.
func (s Set) HasContainer(id string) bool {
	return slices.ContainsFunc(s.all, func(a Attachment) bool { return a.ContainerID == id })
}

// Garbage reports whether mark is that of an attachment that the set excludes.
func (s Set) Garbage(mark string) bool {
	hash, rest, _ := strings.Cut(mark, " ")
	label, _, _ := strings.Cut(rest, " ")
	return isHash(hash) && label != "" && label == networkLabel(s.network) && !s.hashes[hash]
}

// Exists is the error of an ADD whose attachment or interface is there. It ends in words that programs look for.
func (a Attachment) Exists(what string) *Error {
	return Errorf(CodeExists, "%s (%s): container veth name %q already exists", what, a, a.IfName)
}

// ValidName reports whether s may name a network or a container (specification,
// sections 1 and 2): a letter or digit, then letters, digits, '_', '.' and '-'.
func ValidName(s string) bool {
	const alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return s != "" && strings.Contains(alnum, s[:1]) && strings.Trim(s, alnum+"_.-") == ""
}

// ValidIfName reports whether the kernel takes s, as it is, as the name of an interface: 1 to 15 bytes without slash,
// colon or white space, and no name that other directories have in /proc and /sys. A percent sign makes it a pattern. A
// name that is no UTF-8 cannot be written in a result.
func ValidIfName(s string) bool {
	switch s {
	case "", ".", "..", "all", "default":
		return false
	}
	// To the kernel the byte 0xa0 is white space, whatever rune it is part of.
	if len(s) > 15 || strings.ContainsAny(s, "/:%\x00") || strings.Contains(s, "\xa0") || !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, unicode.IsSpace)
}

// CheckIfName refuses a value of a key that ValidIfName refuses, or that has characters which a terminal does not show.
// Records and DEL use only ValidIfName, because an interface may have such a name from an earlier version.
func CheckIfName(code uint, key, name string) error {
	if !ValidIfName(name) || strings.ContainsFunc(name, notPrintable) {
		return Refuse(key, name, "is not an interface name (1 to 15 printable bytes, no '/', ':', '%' or white space)").
			WithCode(code)
	}
	return nil
}

// nameMax is the longest name, in bytes, that file systems and the kernel accept.
const nameMax = 255

// CheckName refuses a name, of any kind, that is too long or has characters which a terminal does not show.
func CheckName(key, name string) error {
	switch {
	case len(name) > nameMax:
		return Refuse(key, name[:64]+"...", fmt.Sprintf("has %d bytes, more than %d", len(name), nameMax))
	case strings.ContainsFunc(name, notPrintable):
		return Refuse(key, name, "has characters that cannot be printed")
	}
	return nil
}

// IsPlugin reports whether a program, or a type in a configuration, is the plugin: it has the plugin's name, or a name
// that ends in a dash and the plugin's name (buildkit-cni-bridge).
func IsPlugin(name, plugin string) bool {
	const longer = "tc-redirect-tap" // also ends in the name of another plugin
	if plugin != longer && IsPlugin(name, longer) {
		return false
	}
	return name == plugin || strings.HasSuffix(name, "-"+plugin)
}

// ValidType reports whether s may name a plugin, a file in a directory of CNI_PATH.
func ValidType(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\\") && CheckName("", s) == nil
}
