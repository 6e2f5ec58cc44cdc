package nft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// elementMessages cuts a change of elements into messages that an attribute's 16-bit length can hold.
func elementMessages(typ uint16, t Table, set string, elems []Element) []message {
	what := "add to"
	flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	if typ == unix.NFT_MSG_DELSETELEM {
		what, flags = "delete from", 0
	}
	var out []message
	var list netlink.Body
	flush := func() {
		if len(list) == 0 {
			return
		}
		body := setRef(t, set)
		body.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)
		out = append(out, message{typ: nfMsg(typ), flags: flags, table: t, body: body,
			what: fmt.Sprintf("%s set %q", what, set)})
		list = nil
	}
	for _, e := range elems {
		one := e.encode(typ == unix.NFT_MSG_NEWSETELEM)
		if len(list)+len(one)+4 > chunkSize {
			flush()
		}
		list.Nest(unix.NFTA_LIST_ELEM, one)
	}
	flush()
	return out
}

func setRef(t Table, set string) netlink.Body {
	var a netlink.Body
	a.Text(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	a.Text(unix.NFTA_SET_ELEM_LIST_SET, set)
	return a
}

// encode leaves out all but the key where the kernel wants no more: it would ignore the rest.
func (e Element) encode(whole bool) netlink.Body {
	var a netlink.Body
	a.Nest(unix.NFTA_SET_ELEM_KEY, value(e.Key))
	if !whole {
		return a
	}
	switch {
	case e.Goto != "":
		var v, data netlink.Body
		code := int32(unix.NFT_GOTO)
		v.Net32(unix.NFTA_VERDICT_CODE, uint32(code))
		v.Text(unix.NFTA_VERDICT_CHAIN, e.Goto)
		data.Nest(unix.NFTA_DATA_VERDICT, v)
		a.Nest(unix.NFTA_SET_ELEM_DATA, data)
	case e.Data != nil:
		a.Nest(unix.NFTA_SET_ELEM_DATA, value(e.Data))
	}
	if e.Comment != "" {
		a.Bytes(attrElemUserdata, udataText(udataComment, e.Comment))
	}
	return a
}

func value(data []byte) netlink.Body {
	var a netlink.Body
	a.Bytes(unix.NFTA_DATA_VALUE, data)
	return a
}

// decodeElements reads the elements of a NEWSETELEM message.
func decodeElements(data []byte) []Element {
	var out []Element
	for _, raw := range netlink.Attributes(netlink.Attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
		var e Element
		for typ, val := range netlink.Attributes(raw) {
			switch typ {
			case unix.NFTA_SET_ELEM_KEY:
				e.Key = netlink.Attribute(val, unix.NFTA_DATA_VALUE)
			case unix.NFTA_SET_ELEM_DATA:
				e.Data = netlink.Attribute(val, unix.NFTA_DATA_VALUE)
				e.Goto = netlink.Text(netlink.Attribute(netlink.Attribute(val, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN))
			case attrElemUserdata:
				e.Comment = udata(val, udataComment)
			}
		}
		out = append(out, e)
	}
	return out
}
