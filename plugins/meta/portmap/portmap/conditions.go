package portmap

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"unicode"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
)

// Tenants may write conditions, which iptables and nft execute as root. Therefore, a condition may only contain matches
// that read a packet, its connection, a link or a route, and matches that keep a count for only their own rule (limit).
// It may not contain matches that change other state: lists and counters with a name (recent, hashlimit), logs, marks,
// and settings of the host (connbytes turns on accounting of connections, and physdev packet filters for bridges). A
// lookup in an ipset (set) is permitted, although it increments the counters of a set that has counters.

// iptablesMatches lists the matches of iptables that conditions may use. iptablesOptions lists the permitted options:
// the options of these matches, and options that need no match. An option is not checked against its match, because
// iptables refuses an option that none of the named matches has.
const (
	iptablesMatches = "addrtype comment connlimit connmark conntrack cpu devgroup dscp ecn helper hl iprange length " +
		"limit mac mark multiport owner pkttype policy sctp set state statistic string tcp tcpmss time tos ttl u32 udp"
	iptablesOptions = "source src destination dst protocol proto in-interface out-interface fragment " +
		"src-type dst-type limit-iface-in limit-iface-out comment " +
		"connlimit-upto connlimit-above connlimit-mask connlimit-saddr connlimit-daddr " +
		"ctstate ctproto ctorigsrc ctorigdst ctreplsrc ctrepldst ctorigsrcport ctorigdstport ctreplsrcport " +
		"ctrepldstport ctstatus ctexpire ctdir cpu src-group dst-group dscp dscp-class ecn-tcp-cwr ecn-tcp-ece " +
		"ecn-ip-ect helper hl-eq hl-lt hl-gt src-range dst-range length limit limit-burst mac-source mark " +
		"source-port source-ports sport sports destination-port destination-ports dport dports ports " +
		"match-set return-nomatch update-counters " +
		"uid-owner gid-owner socket-exists pkt-type dir pol strict reqid spi tunnel-src tunnel-dst next " +
		"chunk-types state mode probability every packet algo from to string hex-string icase tcp-flags syn " +
		"tcp-option mss datestart datestop timestart timestop monthdays weekdays kerneltz contiguous tos " +
		"ttl-eq ttl-lt ttl-gt u32"
)

const noMatch = "is not a match that only reads packets, connections, links or routes"

// checkMatches returns an error if a condition contains anything but the matches that tenants may use. It returns nil
// for a condition that checkTokens refuses. Records are not checked, because an earlier version accepted other matches.
func checkMatches(key string, tokens []string) error {
	if len(tokens) == 0 || checkTokens(key, tokens) != nil {
		return nil
	}
	find := misfitNFT
	if syntaxOf(tokens) == iptables {
		find = misfitIPTables
		if err := checkSavedForm(key, tokens); err != nil {
			return err
		}
	}
	if i, text := find(tokens); i >= 0 {
		return cni.Refuse(fmt.Sprintf("%s[%d]", key, i), text, noMatch)
	}
	return nil
}

// misfitIPTables returns the index of the first token that is an option or a match that conditions may not use, and its
// text. The index is -1 if there is none. Each token that begins with - must be a permitted option, although iptables
// would accept it as the value of the option before it. Abbreviations are not permitted.
func misfitIPTables(tokens []string) (index int, text string) {
	isName := false // whether the token is the name of a match
	for i, t := range tokens {
		name := t
		if !isName {
			option, value, hasValue := strings.Cut(t, "=")
			long, isLong := strings.CutPrefix(option, "--")
			switch {
			case isLong && long == "match", t == "-m":
				name, isName = value, !hasValue
			case strings.HasPrefix(t, "-m"):
				name = t[len("-m"):]
			case isLong && isWord(iptablesOptions, long), t == "-f", !strings.HasPrefix(t, "-"),
				!isLong && len(t) > 1 && strings.Contains("sdpio", t[1:2]):
				continue
			default:
				return i, t
			}
			if isName {
				continue
			}
		}
		if !isWord(iptablesMatches, name) {
			return i, name
		}
		isName = false
	}
	return -1, ""
}

// isWord reports whether a list, whose words have blanks between them, has a word.
func isWord(list, word string) bool {
	return word != "" && !strings.Contains(word, " ") && strings.Contains(" "+list+" ", " "+word+" ")
}

// nftFields are the expressions of nft that conditions may use, in addition to nftMeta: each header or object, and its
// fields. The words of nftMeta are also permitted without "meta" before them.
const nftFields = "|meta:" + nftMeta + " length protocol priority nfproto l4proto random iifkind oifkind time hour " +
	"day sdif sdifname" +
	"|ip:saddr daddr protocol version hdrlength dscp ecn length id frag-off ttl checksum" +
	"|ip6:saddr daddr nexthdr version dscp ecn flowlabel length hoplimit" +
	"|tcp:sport dport flags sequence ackseq doff window checksum urgptr" +
	"|udp:sport dport length checksum" +
	"|sctp:sport dport vtag checksum" +
	"|th:sport dport" +
	"|ether:saddr daddr type" +
	"|ct:state direction status mark helper l3proto protocol saddr daddr proto-src proto-dst zone id" +
	"|fib:type oif oifname|"

const (
	nftMeta = "mark iif iifname iiftype iifgroup oif oifname oiftype oifgroup skuid skgid pkttype cpu cgroup " +
		"rtclassid"
	nftInfix = ", . - / & | ^ and or xor << >> lshift rshift"
	nftOps   = "== != < > <= >= ! eq ne lt gt le ge"
)

// nftReader reads the words of a condition. An nft rule is a list of statements, and each statement of a condition must
// be a match. nftReader ends each statement where nft does, so that it cannot read the beginning of another statement
// as a value.
type nftReader struct {
	words []string
	next  int
}

// misfitNFT returns the index of the token with the first word that is not a part of a match, and the word. The index
// is -1 if there is none.
func misfitNFT(tokens []string) (index int, text string) {
	var r nftReader
	var indexes []int
	for i, t := range tokens {
		words, rest := nftWords(t)
		if rest != "" {
			return i, rest
		}
		for range words {
			indexes = append(indexes, i)
		}
		r.words = append(r.words, words...)
	}
	for r.next < len(r.words) {
		if !r.match() {
			last := min(r.next, len(r.words)-1)
			return indexes[last], r.words[last]
		}
	}
	return -1, ""
}

// nftWords splits a token into words as nft does. rest begins with the first character that no match contains.
func nftWords(token string) (words []string, rest string) {
	for rest = strings.TrimLeft(token, " "); rest != ""; rest = strings.TrimLeft(rest, " ") {
		end := strings.IndexFunc(rest, func(r rune) bool { return !isWordRune(r) })
		switch {
		case rest[0] == '"':
			end = strings.IndexByte(rest[1:], '"') + 2
			if end == 1 {
				return words, rest
			}
		case rest[0] == '@': // a part of the packet, such as @th,16,16
			end = strings.IndexByte(rest, ' ')
		case len(rest) > 1 && isWord("== != <= >= << >>", rest[:2]):
			end = 2
		case strings.Contains("{}(),!<>&|^", rest[:1]):
			end = 1
		case end == 0:
			return words, rest
		}
		if end < 0 {
			end = len(rest)
		}
		words, rest = append(words, rest[:end]), rest[end:]
	}
	return words, ""
}

func isWordRune(r rune) bool {
	return r <= unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_./:*-", r))
}

// take reads the next word if the list has it.
func (r *nftReader) take(list string) bool {
	if r.next == len(r.words) || !isWord(list, r.words[r.next]) {
		return false
	}
	r.next++
	return true
}

// match reads one match, for example "ip saddr . tcp dport { 192.0.2.1 . 80 }".
func (r *nftReader) match() bool {
	switch {
	case r.take("counter"):
		return true
	case r.take("limit"):
		return r.take("rate") && r.rate()
	}
	for more := true; more; more = r.take(".") {
		if !r.field() {
			return false
		}
	}
	for more := true; more; more = r.take(nftInfix) || r.take(nftOps) {
		if !r.take(nftInfix) {
			r.take(nftOps)
		}
		if !r.operand() {
			return false
		}
	}
	return true
}

// rate reads the rate of the statement limit, such as "over 10/second burst 5 packets".
func (r *nftReader) rate() bool {
	for begin := r.next; ; r.next++ {
		word := ""
		if r.next < len(r.words) {
			word = r.words[r.next]
		}
		amount, unit, _ := strings.Cut(word, "/")
		isUnit := isWord("over burst packets bytes kbytes mbytes", amount)
		isTime := unit == "" || isWord("second minute hour day week", unit)
		if !isTime || !isUnit && !isNumber(amount) {
			return r.next > begin
		}
	}
}

// field reads the first part of a match, such as "ip saddr".
func (r *nftReader) field() bool {
	if r.take(nftMeta) {
		return true
	}
	if r.next == len(r.words) {
		return false
	}
	name := r.words[r.next]
	if isRawField(name) {
		r.next++
		return true
	}
	_, rest, isHeader := strings.Cut(nftFields, "|"+name+":")
	if !isHeader {
		return false
	}
	r.next++
	switch name {
	case "ct":
		if r.take("count") {
			r.take("over")
			return true
		}
		r.take("original reply")
		r.take("ip ip6")
	case "fib":
		for more := true; more; more = r.take(".") {
			r.take("saddr daddr mark iif oif")
		}
	}
	fields, _, _ := strings.Cut(rest, "|")
	return r.take(fields)
}

// isRawField reports whether a word names bits of a packet, such as @th,16,16, and not a set.
func isRawField(word string) bool {
	parts := strings.Split(word, ",")
	return len(parts) == 3 && isWord("@ll @nh @th @ih", parts[0]) && isNumber(parts[1]) && isNumber(parts[2])
}

// operand reads a value, or several in braces or parentheses.
func (r *nftReader) operand() bool {
	end := ""
	switch {
	case r.take("{"):
		end = "}"
	case r.take("("):
		end = ")"
	default:
		return r.value()
	}
	for r.value() {
		if !r.take(nftInfix) {
			return r.take(end)
		}
	}
	return false
}

// value reads a number, an address, a name, or a range.
func (r *nftReader) value() bool {
	if r.next == len(r.words) || !isNFTValue(r.words[r.next]) {
		return false
	}
	r.next++
	return true
}

// isNFTValue reports whether nft reads a whole word as one value or as a range. nft would split 80accept into a number
// and a keyword. After a field, the keywords set, map and vmap are not values.
func isNFTValue(word string) bool {
	first := rune(word[0])
	switch {
	case first == '"':
		return true
	case unicode.IsLetter(first) && !strings.Contains(word, ":"):
		return !isWord("set map vmap "+nftInfix+" "+nftOps, word) && !strings.Contains(word[:len(word)-1], "*")
	case !unicode.IsLetter(first) && !unicode.IsDigit(first) && first != ':':
		return false
	}
	for part := range strings.SplitSeq(word, "-") {
		_, err := netip.ParsePrefix(part)
		_, err2 := netip.ParseAddr(part)
		mac, _ := net.ParseMAC(part)
		if err != nil && err2 != nil && !isNumber(part) && (len(mac) != 6 || !strings.Contains(part, ":")) {
			return false
		}
	}
	return true
}

func isNumber(text string) bool {
	digits := "0123456789"
	if hex, isHex := strings.CutPrefix(text, "0x"); isHex {
		text, digits = hex, digits+"abcdefABCDEF"
	}
	return text != "" && strings.Trim(text, digits) == ""
}

const (
	conditionMax = 1 << 14 // bytes of all conditions of a family
	rulesMax     = 256     // rules in iptables for one port
	allRulesMax  = 1 << 12 // rules in iptables for all ports, in one family

	// For checkSavedForm. iptables-restore reads at most 255 words and 10,238 bytes of a rule, 1,023 bytes of a word,
	// and 256 bytes of a string in hexadecimal. iptables-save prints up to twice as many bytes as iptables was given,
	// because it escapes characters, and up to four words for one, because it adds defaults: -mlimit becomes
	// -m limit --limit 3/hour.
	iptablesMax = 1 << 12 // bytes of all conditions
	wordsMax    = 48
	u32Max      = 500 // bytes of an expression
	stringMax   = 127 // bytes of a string

	quotedOptions  = "--comment --helper --hex-string --string --u32" // options whose values iptables-save quotes
	unquotedReason = "has a blank, quotation mark or backslash, which iptables-save does not quote"
)

// checkSavedForm returns an error for a condition in iptables' syntax that iptables-restore would refuse or read
// differently when another program saves and restores all rules.
func checkSavedForm(key string, tokens []string) error {
	refuse := func(key string, limit int, unit string) error {
		return cni.Refuse(key, nil, fmt.Sprintf("has more than %d %s, the maximum in iptables' syntax", limit, unit))
	}
	switch {
	case len(tokens) > wordsMax:
		return refuse(key, wordsMax, "words")
	case len(ipt.NewRule("", tokens...).String()) > iptablesMax:
		return refuse(key, iptablesMax, "bytes")
	}
	for i, t := range tokens {
		where := fmt.Sprintf("%s[%d]", key, i)
		switch {
		case len(valueOf("--u32", tokens, i)) > u32Max:
			return refuse(where, u32Max, "bytes")
		case len(valueOf("--hex-string --string", tokens, i)) > stringMax:
			return refuse(where, stringMax, "bytes")
		case strings.ContainsAny(t, ` "'\`) && valueOf(quotedOptions, tokens, i) == "":
			return cni.Refuse(where, t, unquotedReason)
		}
	}
	return nil
}

// syntaxOf returns the backend whose syntax a condition has.
func syntaxOf(tokens []string) ipt.Backend {
	if first := tokens[0]; strings.HasPrefix(first, "-") || strings.HasPrefix(first, "!") {
		return iptables
	}
	return nftables
}

// checkTokens returns an error for tokens that would end the condition, and for conditions that make too many rules.
func checkTokens(key string, tokens []string) error {
	var problems cni.Problems
	if len(strings.Join(tokens, " ")) > conditionMax {
		return cni.Refuse(key, nil, fmt.Sprintf("has more than %d bytes", conditionMax))
	}
	if ruleCount(tokens) > rulesMax {
		return cni.Refuse(key, nil, fmt.Sprintf("has lists of addresses that make more than %d rules", rulesMax))
	}
	for i, t := range tokens {
		where := fmt.Sprintf("%s[%d]", key, i)
		switch {
		case t == "":
			problems.Add(cni.Refuse(where, t, "is empty"))
		case strings.ContainsFunc(t, unicode.IsControl):
			problems.Add(cni.Refuse(where, t, "has a control character"))
		case syntaxOf(tokens) == nftables && strings.ContainsAny(t, ";#"):
			problems.Add(cni.Refuse(where, t, "would end the condition"))
		}
	}
	return problems.Err()
}

// ruleCount returns the number of rules that iptables adds for one rule with the condition, but at most rulesMax+1.
func ruleCount(tokens []string) int {
	count := 1
	for i := range tokens {
		if syntaxOf(tokens) == iptables {
			count = min(count*(1+strings.Count(addressList(tokens, i), ",")), rulesMax+1)
		}
	}
	return count
}

// addressList returns the addresses in a token of a condition in iptables' syntax, or "". iptables adds a rule for each
// address of a list, and for each pair of a source and a destination. A number, such as 10, is also an address.
func addressList(tokens []string, i int) string {
	t := tokens[i]
	if strings.HasPrefix(t, "-s") || strings.HasPrefix(t, "-d") {
		return t[2:]
	}
	return valueOf("-s --source --src -d --destination --dst", tokens, i)
}

// valueOf returns the value in a token, if it belongs to one of the options; otherwise "".
func valueOf(options string, tokens []string, i int) string {
	option, value, _ := strings.Cut(tokens[i], "=")
	if i > 0 && isWord(options, tokens[i-1]) {
		return tokens[i]
	}
	if isWord(options, option) {
		return value
	}
	return ""
}
