package nft

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Element is one element of a set or map.
type Element struct {
	Key     []byte // see Key
	Data    []byte // of a map; nil for a set and a verdict map
	Goto    string // of a verdict map: the chain that the packet goes to
	Comment string // its owner; at most 128 bytes, or nft refuses to load it
}

// setMessage is about a set, or the elements of it in attrs.
func (t Table) setMessage(kind uint16, what, set string, attrs ...[]byte) message {
	return t.message(kind, fmt.Sprintf("%s set %q", what, set), attrText(unix.NFTA_SET_ELEM_LIST_SET, set),
		slices.Concat(attrs...))
}

func elementList(elems []Element, encode func(Element) []byte) []byte {
	var list []byte
	for _, e := range elems {
		list = append(list, attrNest(unix.NFTA_LIST_ELEM, encode(e))...)
	}
	return attrNest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)
}

func (e Element) encodeKey() []byte {
	return attrNest(unix.NFTA_SET_ELEM_KEY, attrBytes(unix.NFTA_DATA_VALUE, e.Key))
}

func (e Element) encode() []byte {
	out := e.encodeKey()
	switch {
	case e.Goto != "":
		out = append(out, attrNest(unix.NFTA_SET_ELEM_DATA, verdictValue(unix.NFT_GOTO, e.Goto))...)
	case e.Data != nil:
		out = append(out, attrNest(unix.NFTA_SET_ELEM_DATA, attrBytes(unix.NFTA_DATA_VALUE, e.Data))...)
	}
	if e.Comment != "" {
		out = append(out, attrBytes(attrElemUserdata, udataText(udataComment, e.Comment))...)
	}
	return out
}

func decodeElements(data []byte) []Element {
	var out []Element
	for _, raw := range attributes(attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
		value := attribute(raw, unix.NFTA_SET_ELEM_DATA)
		out = append(out, Element{
			Key:     attribute(raw, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE),
			Data:    attribute(value, unix.NFTA_DATA_VALUE),
			Goto:    textAt(value, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN),
			Comment: udata(attribute(raw, attrElemUserdata), udataComment),
		})
	}
	return out
}
