package nft

import "golang.org/x/sys/unix"

// reg1 is the register of expressions that need only one.
const reg1 = unix.NFT_REG_1

// expression is one step of a rule as the kernel runs it. attrs have options that it lacks as 0, to tell it from one
// that has them.
func expression(name string, attrs ...[]byte) []byte {
	return append(attrText(unix.NFTA_EXPR_NAME, name), attrNest(unix.NFTA_EXPR_DATA, attrs...)...)
}

func operand(kind uint16, value []byte) []byte {
	return attrNest(kind, attrBytes(unix.NFTA_DATA_VALUE, value))
}

func loadMeta(key, reg uint32) []byte {
	return expression("meta", attrNet32(unix.NFTA_META_KEY, key), attrNet32(unix.NFTA_META_DREG, reg))
}

func storeMeta(key uint32) []byte {
	return expression("meta", attrNet32(unix.NFTA_META_KEY, key), attrNet32(unix.NFTA_META_SREG, reg1))
}

func compare(op uint32, value []byte) []byte {
	return expression("cmp", attrNet32(unix.NFTA_CMP_SREG, reg1), attrNet32(unix.NFTA_CMP_OP, op),
		operand(unix.NFTA_CMP_DATA, value))
}

func isEqual(value []byte) []byte { return compare(unix.NFT_CMP_EQ, value) }

// bitwise is register & mask ^ xor.
func bitwise(mask, xor []byte) []byte {
	return expression("bitwise", attrNet32(unix.NFTA_BITWISE_SREG, reg1),
		attrNet32(unix.NFTA_BITWISE_DREG, reg1), attrNet32(unix.NFTA_BITWISE_LEN, uint32(len(mask))),
		operand(unix.NFTA_BITWISE_MASK, mask), operand(unix.NFTA_BITWISE_XOR, xor))
}

// verdict ends the rule; chain is where a jump or goto leads.
func verdict(code int32, chain string) []byte {
	return expression("immediate", attrNet32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
		attrNest(unix.NFTA_IMMEDIATE_DATA, verdictValue(code, chain)))
}

func verdictValue(code int32, chain string) []byte {
	v := attrNet32(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		v = append(v, attrText(unix.NFTA_VERDICT_CHAIN, chain)...)
	}
	return attrNest(unix.NFTA_DATA_VERDICT, v)
}
