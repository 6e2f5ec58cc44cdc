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

// Attachment identifies one interface of one container on one network (specification, section 3). Everything that a
// plugin leaves on the host belongs to one attachment.
type Attachment struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

const (
	hashLen = 16  // number of hexadecimal digits of a hash, which has 64 bits
	markMax = 128 // length of the longest comment that nft(8) can parse, in bytes
	// networkMax is the length of the longest network name that a mark contains completely, in bytes. GC compares the
	// name, so it must never be cut off at markMax.
	networkMax = 64
)

// Hash returns the ID of the attachment in names of kernel objects and files, 16 lower-case hexadecimal digits. It
// depends on the lengths of the parts, so ("ab", "c") and ("a", "bc") have different hashes.
func (a Attachment) Hash() string { return digest(a.Network, a.ContainerID, a.IfName) }

func isHash(s string) bool { return len(s) == hashLen && strings.Trim(s, "0123456789abcdef") == "" }

// Mark returns the text that identifies the owner in a link's alias or an nftables comment: hash, network, container ID
// and interface, in printable ASCII. It has at most 128 bytes. Container ID and interface are only for people, and may
// be cut off.
func (a Attachment) Mark() string {
	mark := a.Hash() + " " + networkLabel(a.Network) + " " + a.ContainerID + " " + strings.Map(printable, a.IfName)
	return mark[:min(len(mark), markMax)]
}

// Owns reports whether mark is the mark of this attachment.
func (a Attachment) Owns(mark string) bool {
	hash, _, _ := strings.Cut(mark, " ")
	return hash == a.Hash()
}

// NetworkHash returns the link group that identifies the network of a new link. The link gets its mark only later,
// because the kernel does not accept an alias for a new link. The group is not 0, the default, and less than 2^31, the
// limit of ip(8).
func NetworkHash(network string) uint32 {
	sum := sha512.Sum512([]byte(network))
	return binary.BigEndian.Uint32(sum[:])&0x7fffffff | 1
}

func (a Attachment) String() string {
	return fmt.Sprintf("network %q, container %q, interface %q", a.Network, a.ContainerID, a.IfName)
}

// networkLabel returns the network's form in a mark: its name or, for a long name, the beginning and a hash of the
// name. The character between them cannot occur in a name.
func networkLabel(network string) string {
	if len(network) <= networkMax {
		return network
	}
	return network[:networkMax-hashLen-1] + "~" + digest(network)
}

// printable replaces characters that a comment cannot contain. nft(8) cannot parse a quote in a comment.
func printable(r rune) rune {
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

// Digest returns the first digits of the SHA-512 of a text, at most 128, in lower-case hexadecimal.
func Digest(text string, digits int) string {
	sum := sha512.Sum512([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}

// Set contains the valid attachments of a network. All other attachments of the network are garbage.
type Set struct {
	Network string
	All     []Attachment
	hashes  map[string]bool
}

// NewSet returns the set of the valid attachments of a network. It ignores their Network fields.
func NewSet(network string, valid []Attachment) Set {
	s := Set{Network: network, hashes: map[string]bool{}}
	for _, a := range valid {
		a.Network = network
		s.All = append(s.All, a)
		s.hashes[a.Hash()] = true
	}
	return s
}

// Has reports whether a is valid.
func (s Set) Has(a Attachment) bool { return s.hashes[a.Hash()] }

// Excludes reports whether a belongs to the network and is not valid.
func (s Set) Excludes(a Attachment) bool { return a.Network == s.Network && !s.Has(a) }

// HasContainer reports whether an attachment of the container is valid.
func (s Set) HasContainer(id string) bool {
	return slices.ContainsFunc(s.All, func(a Attachment) bool { return a.ContainerID == id })
}

// IsGarbage reports whether mark is the mark of an attachment that the set excludes.
func (s Set) IsGarbage(mark string) bool {
	hash, rest, _ := strings.Cut(mark, " ")
	label, _, _ := strings.Cut(rest, " ")
	return isHash(hash) && label != "" && label == networkLabel(s.Network) && !s.hashes[hash]
}

// Exists returns the error of an ADD whose attachment or interface already exists. Programs search for its last words.
func (a Attachment) Exists(what string) *Error {
	return Errorf(CodeExists, "%s (%s): container veth name %q already exists", what, a, a.IfName)
}

// ValidName reports whether s is a valid name of a network or ID of a container (specification, sections 1 and 2): a
// letter or digit, then letters, digits, '_', '.' and '-'.
func ValidName(s string) bool {
	const alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return s != "" && strings.Contains(alnum, s[:1]) && strings.Trim(s, alnum+"_.-") == ""
}

// ValidIfName reports whether s is a valid name of an interface: 1 to 15 bytes of UTF-8 without slash, colon, percent
// sign or white space. A percent sign would make it a pattern for the kernel, and a result can only contain UTF-8. The
// names ".", "..", "all" and "default" are not valid, because they are other directories in /proc/sys/net/ipv4/conf.
func ValidIfName(s string) bool {
	switch s {
	case "", ".", "..", "all", "default":
		return false
	}
	// The kernel treats the byte 0xa0 as white space, even inside of a longer UTF-8 sequence.
	if len(s) > 15 || strings.ContainsAny(s, "/:%\x00") || strings.Contains(s, "\xa0") || !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, unicode.IsSpace)
}

// CheckIfName returns an error if the value of a key is not a valid name of an interface, or has unprintable
// characters. Records and DEL use only ValidIfName, because an earlier version may have accepted such a name.
func CheckIfName(code uint, key, name string) error {
	if !ValidIfName(name) || strings.ContainsFunc(name, notPrintable) {
		return Refuse(key, name, "is not an interface name (1 to 15 printable bytes, no '/', ':', '%' or white space)").
			WithCode(code)
	}
	return nil
}

const nameMax = 255 // longest name, in bytes, that file systems and the kernel accept

// CheckName returns an error if a name of any kind is too long or has unprintable characters.
func CheckName(key, name string) error {
	switch {
	case len(name) > nameMax:
		return Refuse(key, name[:64]+"...", fmt.Sprintf("has %d bytes, more than %d", len(name), nameMax))
	case strings.ContainsFunc(name, notPrintable):
		return Refuse(key, name, "has characters that cannot be printed")
	}
	return nil
}

// IsPlugin reports whether the name of a program, or a type in a configuration, stands for a plugin: it is the plugin's
// name, or ends in a dash and the plugin's name (buildkit-cni-bridge).
func IsPlugin(name, plugin string) bool {
	const longer = "tc-redirect-tap" // ends in the name of the plugin tap
	if plugin != longer && IsPlugin(name, longer) {
		return false
	}
	return name == plugin || strings.HasSuffix(name, "-"+plugin)
}

// ValidType reports whether s can be the name of a plugin, which is a file in a directory of CNI_PATH.
func ValidType(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\\") && CheckName("", s) == nil
}
