package cni

import "slices"

// AttachmentRef is an entry of cni.dev/valid-attachments (specification 1.1,
// GC).
type AttachmentRef struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// Set holds the attachments of one network that are still valid. Whatever
// else belongs to the network is garbage.
type Set struct {
	network string
	all     []Attachment
	hashes  map[string]bool
}

// NewSet returns the set of the valid attachments of network.
func NewSet(network string, valid []AttachmentRef) Set {
	s := Set{network: network, hashes: map[string]bool{}}
	for _, v := range valid {
		a := Attachment{Network: network, ContainerID: v.ContainerID, IfName: v.IfName}
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

// HasContainer reports whether any interface of the container is valid, for
// things that record no more than a container ID.
func (s Set) HasContainer(id string) bool {
	return slices.ContainsFunc(s.all, func(a Attachment) bool { return a.ContainerID == id })
}

// Garbage reports whether mark was written by an attachment of this network
// that is not valid.
func (s Set) Garbage(mark string) bool {
	return NetworkOwns(s.network, mark) && !s.hashes[mark[:hashLen]]
}
