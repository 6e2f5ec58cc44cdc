package ipt

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/hawser-cni/plugins/pkg/nft"
)

// InNFTables is the rule as iptables-nft writes it, so that it is found without the program: hosts (-s, -d),
// interfaces (-i, -o), conntrack's states, the fwmark, a comment, and a verdict or a chain.
func (r Rule) InNFTables() nft.Rule {
	fields := map[string]nft.Field{"-i": nft.IIFName, "-o": nft.OIFName}
	var out nft.Rule
	for i := 0; i+1 < len(r.Args); i += 2 {
		is := nft.Is
		if r.Args[i] == "!" {
			is, i = nft.IsNot, i+1
		}
		switch option, value := r.Args[i], r.Args[i+1]; option {
		case "-i", "-o":
			out = append(out, is(fields[option], append([]byte(value), 0)))
		case "-s", "-d":
			p := netip.MustParsePrefix(value)
			f := nft.FamilyOf(p.Addr())
			out = append(out, nft.InPrefix(map[string]nft.Field{"-s": f.Saddr(), "-d": f.Daddr()}[option], p))
		case "--ctstate":
			out = append(out, nft.XTMatch("conntrack", 3, conntrackInfo(strings.Split(value, ","))))
		case "--mark":
			out = append(out, nft.XTMatch("mark", 1, markInfo(value)))
		case "--comment":
			out = append(out, nft.XTMatch("comment", 0, append([]byte(value), make([]byte, 256-len(value))...)))
		case "-j":
			out = append(out, target(value))
		}
	}
	return out
}

// conntrackInfo is struct xt_conntrack_mtinfo3 with nothing but states.
func conntrackInfo(states []string) []byte {
	const size, flagsAt, statesAt, matchState = 168, 146, 150, 1
	mask := uint16(0)
	for _, s := range states {
		mask |= map[string]uint16{"ESTABLISHED": 1 << 1, "RELATED": 1 << 2}[s]
	}
	info := make([]byte, size)
	binary.NativeEndian.PutUint16(info[flagsAt:], matchState)
	binary.NativeEndian.PutUint16(info[statesAt:], mask)
	return info
}

// markInfo is struct xt_mark_mtinfo1 for a value and its mask. Programs before 1.8.8 know marks in this form alone, and
// take a rule that compares them in another one for a rule without a match.
func markInfo(value string) []byte {
	const size = 16
	var mark, mask uint32
	if _, err := fmt.Sscanf(value, "%v/%v", &mark, &mask); err != nil {
		panic(err) // a constant of the caller
	}
	info := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, mark), mask)
	return append(info, make([]byte, size-len(info))...)
}

func target(name string) nft.Stmt {
	switch name {
	case "ACCEPT":
		return nft.Accept()
	case "DROP":
		return nft.Drop()
	case "RETURN":
		return nft.Return()
	}
	return nft.Jump(name)
}
