package bandwidth

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

type wireConfig struct {
	skel.LogKey
	wireLimits

	Exempt        []string `json:"exempt" help:"addresses and networks to which no limit applies" each:"format=network"`
	Queue         string   `json:"queue" default:"fifo" schema:"enum=fifo|fq_codel empty" help:"queue of the packets that wait at a limit"`
	Burst         string   `json:"burst" default:"sane" schema:"enum=sane|literal empty" help:"how to treat a burst that the runtime sends as unlimited"`
	RuntimeConfig struct {
		Bandwidth wireLimits `json:"bandwidth" help:"the limits, from the runtime"`
	} `json:"runtimeConfig"`
}

type wireLimits struct {
	IngressRate  *int64 `json:"ingressRate" schema:"min=8 zero" help:"rate at which the container may receive, in bits per second"`
	IngressBurst *int64 `json:"ingressBurst" schema:"min=0 max=34359738359" help:"burst that may exceed ingressRate, in bits"`
	EgressRate   *int64 `json:"egressRate" schema:"min=8 zero" help:"rate at which the container may send, in bits per second"`
	EgressBurst  *int64 `json:"egressBurst" schema:"min=0 max=34359738359" help:"burst that may exceed egressRate, in bits"`
}

type config struct {
	ingress, egress limit
	literal         bool           // a burst that means "unlimited" is used unchanged
	exempt          []netip.Prefix // IPv4 first, the order in which the kernel lists filters
	codel           bool           // packets wait in fq_codel
}

func (c config) isEmpty() bool { return c.ingress.rate == 0 && c.egress.rate == 0 }

// limit is the limit of one direction. If the rate is 0, the direction has no limit.
type limit struct {
	rate, burst uint64 // bits/s, bits
	key         string // configuration key of the burst
}

const codel = "fq_codel" // kind of the qdisc that keeps queues short

const burstMax = 8*(1<<32-1) - 1 // largest burst, in bits, that fits the kernel's counter of bytes

func parseConfig(_ *skel.Request, wire wireConfig, problems *cni.Problems) config {
	cfg := config{literal: wire.Burst == "literal", codel: wire.Queue == codel}
	if b := wire.Burst; b != "" && b != "sane" && b != "literal" {
		problems.Add(cni.Refuse("burst", b, `is neither "sane" nor "literal"`))
	}
	if q := wire.Queue; q != "" && q != "fifo" && q != codel {
		problems.Add(cni.Refuse("queue", q, `is neither "fifo" nor "fq_codel"`))
	}
	exempt, err := cni.ParseNetworks("exempt", wire.Exempt)
	problems.Add(err)
	is6 := func(p netip.Prefix) bool { return p.Addr().Is6() }
	is4 := func(p netip.Prefix) bool { return p.Addr().Is4() }
	cfg.exempt = slices.Concat(slices.DeleteFunc(slices.Clone(exempt), is6), slices.DeleteFunc(exempt, is4))
	w, prefix := wire.wireLimits, ""
	if w == (wireLimits{}) { // an explicit 0 also overrides the runtime's values
		w, prefix = wire.RuntimeConfig.Bandwidth, "runtimeConfig.bandwidth."
	}
	cfg.ingress, err = parseLimit(prefix+"ingress", w.IngressRate, w.IngressBurst)
	problems.Add(err)
	cfg.egress, err = parseLimit(prefix+"egress", w.EgressRate, w.EgressBurst)
	problems.Add(err)
	return cfg
}

const burstAdvice = "a tenth of the rate is a good burst"

// parseLimit reads the limit whose two keys begin with prefix.
func parseLimit(prefix string, rate, burst *int64) (limit, error) {
	r, b := *cmp.Or(rate, new(int64)), *cmp.Or(burst, new(int64))
	l := limit{rate: uint64(r), burst: uint64(b), key: prefix + "Burst"}
	switch rateKey := prefix + "Rate"; {
	case r < 0, r > 0 && r < 8:
		return l, cni.Refuse(rateKey, r, "is neither 0 (no limit) nor at least 8 bits per second")
	case b < 0:
		return l, cni.Refuse(l.key, b, "is negative")
	case b > burstMax:
		return l, cni.Refuse(l.key, b, "cannot be more than 4GB").Suggest("the unit is bits; %s", burstAdvice)
	case r > 0 && b == 0:
		return l, cni.Refuse(l.key, nil, "if rate is set, burst must also be set").Suggest(burstAdvice)
	case r == 0 && b > 0:
		return l, cni.Refuse(rateKey, nil, "if burst is set, rate must also be set").Suggest("%s is %d", l.key, b)
	}
	return l, nil
}
