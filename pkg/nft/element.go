package nft

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Element is one element of a set or map. Identity is the key; Comment says who owns it.
type Element struct {
	Key     []byte // see Key
	Data    []byte // of a map; nil for a set and a verdict map
	Goto    string // of a verdict map: the chain that the packet goes to
	Comment string // at most 128 bytes: nft refuses to load a longer one
}

// setMessage is about the elements of a set in the list.
func (t Table) setMessage(kind uint16, what, set string, list []byte) message {
	m := t.message(kind, fmt.Sprintf("%s set %q", what, set), attrText(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name),
		attrText(unix.NFTA_SET_ELEM_LIST_SET, set))
	if list != nil {
		m.body = append(m.body, attrNest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)...)
	}
	return m
}

// addElements are the messages that add elements, none of which may be there.
func addElements(t Table, set string, elems []Element) []message {
	msgs := elementMessages(elems, Element.encode, func(list []byte) message {
		return t.setMessage(unix.NFT_MSG_NEWSETELEM, "add to", set, list)
	})
	for i := range msgs {
		msgs[i].flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	return msgs
}

// deleteElements are the messages that delete elements by their keys.
func deleteElements(t Table, set string, elems []Element) []message {
	return elementMessages(elems, Element.encodeKey, func(list []byte) message {
		return t.setMessage(unix.NFT_MSG_DELSETELEM, "delete from", set, list)
	})
}

// elementMessages cuts a list of elements into those that an attribute's 16-bit length can hold.
func elementMessages(elems []Element, encode func(Element) []byte, with func(list []byte) message) []message {
	var out []message
	var list []byte
	for _, e := range elems {
		one := attrNest(unix.NFTA_LIST_ELEM, encode(e))
		if len(list)+len(one) > chunkSize {
			out, list = append(out, with(list)), nil
		}
		list = append(list, one...)
	}
	if list != nil {
		out = append(out, with(list))
	}
	return out
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

// decodeElements reads the elements of a NEWSETELEM message.
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
