package portmap

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// Conditions that documentation of the reference, Docker, firewalld and nftables shows, and each kind of match.
var (
	nftConditions = []string{
		"ip saddr 10.0.0.0/8", "ip saddr != 192.0.2.0/24", "ip saddr != { 10.0.0.0/8, 192.168.0.0/16 }",
		"ip saddr 10.0.0.1-10.0.0.9 tcp dport 1024-65535", `iifname "eth0"`, "iifname != eth-set",
		`iifname "eth*"`, `iifname { "eth0", "eth1" }`, "iif lo", "ct state new,established",
		"ct state != invalid", "ct original ip saddr 10.0.0.1", "ct direction original ct mark 7",
		"meta l4proto { tcp, udp }", "meta mark 0x7", "meta mark and 0x3 == 0x1", "meta mark & 0x3 == 0x1",
		"tcp flags & (fin|syn|rst|ack) == syn", "tcp flags syn / syn,ack",
		"ip saddr . tcp dport { 10.0.0.1 . 80, 10.0.0.2 . 81-90 }", "th dport 80", "@th,16,16 8080",
		"fib daddr type local", "fib saddr . iif oif exists", "ether saddr 00:11:22:aa:bb:cc", "meta skuid 1000",
		"ip dscp cs1", "ip ttl > 5", "limit rate 10/second burst 5 packets", "limit rate over 1/minute",
		"ct count over 20", "ip saddr 10.0.0.0/8 counter", "meta pkttype host", "udp length >= 100",
		"meta mark != 0 iifname flow0",
	}
	iptablesConditions = []string{
		"-s 10.0.0.0/8", "! -s 192.0.2.0/24", "-d 192.0.2.1", "-s 10.0.0.1,10.0.0.2", "--source 10.0.0.0/8",
		"-i eth0", "! -i eth+", "-m comment --comment x", "-m mark --mark 0x7", "-m mark ! --mark 0x7/0xff",
		"-m conntrack --ctstate NEW,ESTABLISHED", "-m state --state NEW", "-m connlimit --connlimit-upto 20",
		"-m limit --limit 10/second --limit-burst 5", "-m iprange --src-range 10.0.0.1-10.0.0.9",
		"-m addrtype --src-type UNICAST", "-m mac --mac-source 00:11:22:aa:bb:cc",
		"-m time --weekdays Mon,Tue --kerneltz", "-m statistic --mode random --probability 0.5",
		"-m connmark --mark 1", "-m pkttype --pkt-type host", "--match=length --length 100:200",
		"-m ttl --ttl-gt 5", "-mdscp --dscp 8", "-m tos --tos 0x10/0x3f", "-m u32 --u32 6&0xFF=1",
		"-m cpu --cpu 0", "-m devgroup --src-group 1", "-f",
	}
)

var _ = Describe("a condition", Label("conditions-matches"), func() {
	DescribeTable("is refused, with its key and the word, if it does more than read:", func(text, word string) {
		tokens, err := json.Marshal(strings.Fields(text))
		Expect(err).NotTo(HaveOccurred())
		_, err = parse(`"conditionsV6":` + string(tokens))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		Expect(err).To(MatchError(And(MatchRegexp(`^conditionsV6\[\d+\]: `),
			ContainSubstring(`]: `+strconv.Quote(word)+" is not a match that only reads"))))
	},
		func(text, word string) string { return text },
		Entry(nil, "-s ::1 -m recent --name admins --remove --rsource", "recent"),
		Entry(nil, "-mrecent --set", "recent"),
		Entry(nil, "--match=recent --update", "recent"),
		Entry(nil, "--match recent --rcheck", "recent"),
		Entry(nil, "-m hashlimit --hashlimit-name kube --hashlimit-upto 1/day", "hashlimit"),
		Entry(nil, "-m set --add-set kube src", "--add-set"),
		Entry(nil, "-m quota --quota 1000", "quota"),
		Entry(nil, "-m nfacct --nfacct-name x", "nfacct"),
		Entry(nil, "-m rateest --rateest x", "rateest"),
		Entry(nil, "-m connlabel --label 1 --set", "connlabel"),
		Entry(nil, "-m bpf --object-pinned /sys/fs/bpf/x", "bpf"),
		Entry(nil, "-m osf --genre x --log 0", "osf"),
		Entry(nil, "-m connbytes --connbytes 1:", "connbytes"),
		Entry(nil, "-m physdev --physdev-is-bridged", "physdev"),
		Entry(nil, "-m comment --comment x -j ACCEPT", "-j"),
		Entry(nil, "-m comment --comment x --jump=LOG", "--jump=LOG"),
		Entry(nil, "-m comment --comment x -gX", "-gX"),
		Entry(nil, "-m comment --comment x -A INPUT", "-A"),
		Entry(nil, "-s ::1 -tfilter", "-tfilter"),
		Entry(nil, "-s ::1 -fjACCEPT", "-fjACCEPT"),
		Entry(nil, "-s ::1 -c 5 5", "-c"),
		Entry(nil, "-s ::1 --set", "--set"),
		Entry(nil, "-s ::1 --mat recent", "--mat"),
		Entry(nil, "-s ::1 - --", "-"),
		Entry(nil, "ip6 saddr ::1 log", "log"),
		Entry(nil, `ip6 saddr ::1 log prefix "kernel:"`, "log"),
		Entry(nil, "counter name x", "name"),
		Entry(nil, "limit name x", "name"),
		Entry(nil, "quota over 10 mbytes", "quota"),
		Entry(nil, "ct helper set x", "set"),
		Entry(nil, "ct timeout set x", "timeout"),
		Entry(nil, "ct bytes > 5", "bytes"),
		Entry(nil, "ct label 5", "label"),
		Entry(nil, "meta mark set 5", "set"),
		Entry(nil, "mark set 5", "set"),
		Entry(nil, "iifname set", "set"),
		Entry(nil, "@th,0,16 set 5", "set"),
		Entry(nil, "ip6 saddr @x", "@x"),
		Entry(nil, "ip6 saddr $x", "$x"),
		Entry(nil, "tcp dport 80accept", "80accept"),
		Entry(nil, "tcp dport 80add", "80add"),
		Entry(nil, "ip6 saddr ::1accept", "::1accept"),
		Entry(nil, "ip6 saddr ::1-accept", "::1-accept"),
		Entry(nil, "ether saddr 00:11:22:aa:bb:ccaccept", "00:11:22:aa:bb:ccaccept"),
		Entry(nil, "tcp dport { 80 : accept }", ":"),
		Entry(nil, "tcp dport { 80 counter }", "counter"),
		Entry(nil, "tcp dport { 80, { 81 } }", "{"),
		Entry(nil, "tcp dport 80 } accept {", "}"),
		Entry(nil, "tcp dport 80 accept", "accept"),
		Entry(nil, "tcp dport 80 jump x", "jump"),
		Entry(nil, "tcp dport 80\\", "\\"),
		Entry(nil, `iifname "eth0`, `"eth0`),
		Entry(nil, "tcp dport", "dport"),
		Entry(nil, "numgen inc mod 2 0", "numgen"),
		Entry(nil, "dup to ::1", "dup"),
		Entry(nil, "ıifname eth0", "ıifname"),
	)

	It("may look up an ipset", func() {
		text := "-m set ! --match-set admins src,dst ! --update-counters"
		Expect(checkMatches("key", strings.Fields(text))).To(Succeed())
	})

	It("is accepted if nft and iptables also read only matches in it", Label("kernel"), func() {
		w := newWorld()
		w.Cmd("nft", "add table inet t; add chain inet t c; add chain inet t to")
		for _, text := range nftConditions {
			tokens := strings.Fields(text)
			Expect(checkMatches("key", tokens)).To(Succeed(), text)
			Expect(checkMatches("key", []string{text})).To(Succeed(), text)
			w.Cmd("nft", "flush chain inet t c; add rule inet t c "+text+" goto to")
			var list struct {
				Nftables []struct {
					Rule struct{ Expr []map[string]any }
				}
			}
			Expect(json.Unmarshal([]byte(w.Cmd("nft", "-j", "list", "chain", "inet", "t", "c")), &list)).To(Succeed())
			var statements []string
			for _, o := range list.Nftables {
				for _, e := range o.Rule.Expr {
					statements = slices.AppendSeq(statements, maps.Keys(e))
				}
			}
			Expect(statements).To(HaveEach(BeElementOf("match", "limit", "ct count", "counter", "goto")), text)
			Expect(len(statements)).To(BeNumerically(">", 1), text)
		}
		for _, text := range iptablesConditions {
			tokens := strings.Fields(text)
			Expect(checkMatches("key", tokens)).To(Succeed(), text)
			w.Cmd("iptables", slices.Concat([]string{"-t", "nat", "-A", "INPUT", "-p", "tcp"}, tokens,
				[]string{"-j", "RETURN"})...)
		}
	})

	// longRule returns tokens with which an entry rule is longer than a line that iptables-restore reads, if iptables
	// lists filler as listed. The text rest begins where the line is cut.
	longRule := func(filler, listed, rest string) (tokens []string) {
		r := &record{Attachment: cni.Attachment{Network: "net1", ContainerID: "c1-2"},
			Mappings: []mapping{{Proto: 6, HostPort: 8080, ContainerPort: 80}}}
		entry, _, _ := strings.Cut(r.entryRules(nft.IPv4)[0].Append(), " -j ")
		const line, token, count = 10239, ` -m comment --comment ""`, 75
		length := len(entry)
		for line-length > 200 {
			tokens = append(tokens, "-m", "comment", "--comment", strings.Repeat(filler, count))
			length += len(token) + count*len(listed)
		}
		return append(tokens, "-m", "comment", "--comment",
			strings.Repeat("b", line-length-len(token)+len(`"`))+rest)
	}
	restore := func(w *world) { w.Cmd("sh", "-c", "iptables-save -t nat | iptables-restore") }

	for _, k := range kinds[1:] {
		It("is refused if "+k.name+" would cut it into two rules", Label("kernel"),
			nstest.Variant(k.variant), func() {
				nstest.UseVariant(k.variant)
				w, a := newContainer()
				restore(w)
				before := w.rules()
				for filler, listed := range map[string]string{"a ": "a ", "'": `\'`} {
					o := a.call("ADD", k.config, ports("8080:80"), Object{"conditionsV4": longRule(filler, listed,
						"-A PREROUTING -p udp -j REDIRECT --to-ports 1 -m comment --comment x")})
					restore(w)
					Expect(strings.Count(w.natRules(), "REDIRECT")).To(BeZero(), o.text())
					Expect(w.rules()).To(Equal(before))
					Expect(o.Msg).To(MatchRegexp("^conditionsV4: has more than .*, the maximum in iptables' syntax$"))
				}
			})

		It("of the maximum length can be saved and restored by "+k.name,
			Label("kernel"), nstest.Variant(k.variant), func() {
				nstest.UseVariant(k.variant)
				w, a := newContainer()
				fill := func(words ...string) []string {
					return slices.Repeat(words, min(iptablesMax/len(ipt.NewRule("", words...).String()),
						wordsMax/len(words)))
				}
				test := "0" + strings.Repeat("&0", 9) + "=0:1" + strings.Repeat(",0:1", 9)
				test += strings.Repeat("&&"+test, min(u32Max/len("&&"+test), 10)-1)
				for _, tokens := range [][]string{fill("-mcomment", "--comment="+strings.Repeat("'", 250)),
					fill("-mu32", "--u32="+test), fill("-mtime"),
					fill("-mstring", "--algo=bm", "--string="+strings.Repeat("é", stringMax/2))} {
					a.add(k.config, ports("8080:80"), Object{"conditionsV4": tokens})
					before := w.natRules()
					restore(w)
					Expect(w.natRules()).To(Equal(before))
					a.del(k.config)
				}
			})
	}

	DescribeTable("cannot change an administrator's list", Label("kernel"), func(config Object, text string) {
		w, a := newContainer()
		before := w.rules()
		o := a.call("ADD", config, Object{"conditionsV4": strings.Fields(text)}, ports("8080:80"))
		Expect(o.Code).To(Equal(cni.CodeConfig), o.text())
		Expect(o.Msg).To(HavePrefix(`conditionsV4[1]: "recent" is not a match`))
		Expect(w.rules()).To(Equal(before))
	},
		Entry("on iptables", Object{"backend": "iptables"}, "-m recent --name admins --set --rsource"),
		Entry("without a backend", Object{}, "-m recent --name admins --remove"),
	)
})
