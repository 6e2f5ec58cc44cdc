package nft

import (
	"fmt"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// elementMessages cuts a change of elements into messages that an attribute's 16-bit length can hold.
func elementMessages(typ uint16, t Table, set string, elems []Element) []message {
	what := "add to"
	flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	if typ == unix.NFT_MSG_DELSETELEM {
		what, flags = "delete from", 0
	}
	var out []message
	var list attrs
	flush := func() {
		if len(list) == 0 {
			return
		}
		body := setRef(t, set)
		body.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)
		out = append(out, message{typ: nfMsg(typ), flags: flags, table: t, body: body,
			what: fmt.Sprintf("%s set %q", what, set)})
		list = nil
	}
	for _, e := range elems {
		one := e.encode(typ == unix.NFT_MSG_NEWSETELEM)
		if len(list)+len(one)+4 > chunkSize {
			flush()
		}
		list.nest(unix.NFTA_LIST_ELEM, one)
	}
	flush()
	return out
}

func setRef(t Table, set string) attrs {
	var a attrs
	a.str(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	a.str(unix.NFTA_SET_ELEM_LIST_SET, set)
	return a
}

// encode leaves out all but the key where the kernel wants no more: it would ignore the rest.
func (e Element) encode(whole bool) attrs {
	var a attrs
	a.nest(unix.NFTA_SET_ELEM_KEY, value(e.Key))
	if !whole {
		return a
	}
	switch {
	case e.Goto != "":
		var v, data attrs
		code := int32(unix.NFT_GOTO)
		v.u32(unix.NFTA_VERDICT_CODE, uint32(code))
		v.str(unix.NFTA_VERDICT_CHAIN, e.Goto)
		data.nest(unix.NFTA_DATA_VERDICT, v)
		a.nest(unix.NFTA_SET_ELEM_DATA, data)
	case e.Data != nil:
		a.nest(unix.NFTA_SET_ELEM_DATA, value(e.Data))
	}
	if e.Comment != "" {
		a.put(attrElemUserdata, comment(userdata.NFTNL_UDATA_SET_ELEM_COMMENT, e.Comment))
	}
	return a
}

func value(data []byte) attrs {
	var a attrs
	a.put(unix.NFTA_DATA_VALUE, data)
	return a
}

// decodeElements reads the elements of a NEWSETELEM message.
func decodeElements(data []byte) []Element {
	var out []Element
	for _, raw := range attributes(attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
		var e Element
		for typ, val := range attributes(raw) {
			switch typ {
			case unix.NFTA_SET_ELEM_KEY:
				e.Key = attribute(val, unix.NFTA_DATA_VALUE)
			case unix.NFTA_SET_ELEM_DATA:
				e.Data = attribute(val, unix.NFTA_DATA_VALUE)
				e.Goto = cstring(attribute(attribute(val, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN))
			case attrElemUserdata:
				e.Comment = udata(val, userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
			}
		}
		out = append(out, e)
	}
	return out
}

// udata is userdata.GetString for what somebody else may have written: it trusts no length.
func udata(b []byte, want userdata.Type) string {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		if userdata.Type(b[0]) == want {
			return cstring(b[2 : 2+int(b[1])])
		}
		b = b[2+int(b[1]):]
	}
	return ""
}
