// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/transport/numbers"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/transport"
)

// Those of exchange.h: rates are asked for on some paths, and rules ask for something.
const (
	exchangeRates = 1 << 0
	exchangeRules = 1 << 2
)

// exchangeOf is what the programs are told of requests; the revision is 0 where there are
// none: asking is true where rules have some.
func exchangeOf(of *v1alpha1.Transport, incast *v1alpha1.Incast, asking bool) (e transport.TransportExchange) {
	if of.Request == nil && of.Accept == nil && !withCredits(incast) && !asking {
		return e
	}
	if asking {
		e.Flags |= exchangeRules
	}
	if of.Request != nil {
		ask(&e, of.Request)
	}
	if of.Accept != nil {
		accept(&e, of.Accept)
	}
	if withCredits(incast) {
		addCredits(&e, incast)
	}
	sum := fnv.New32a()
	_ = json.NewEncoder(sum).Encode([]any{of.Request, of.Accept, incast, asking}) // none can fail
	e.Revision = sum.Sum32() | 1
	return e
}

func ask(e *transport.TransportExchange, r *v1alpha1.TransportRequest) {
	e.Asked, e.Number = Asked(r)
	if len(r.Rates) > 0 {
		e.Flags |= exchangeRates
	}
}

// Numbers are those of requests, by their types, in the form of package numbers.
type Numbers = [transport.Requests]uint32

// Asked is what is asked of all peers, in the form of package numbers: a bit for each type,
// and its number. Rates are asked of single subflows.
func Asked(r *v1alpha1.TransportRequest) (asked uint32, number Numbers) {
	set := func(request int, of uint32) {
		asked |= 1 << request
		number[request] = of
	}
	if r.CongestionControl != "" {
		set(transport.RequestCongestionControl, uint32(numbers.OfName(r.CongestionControl)))
	}
	if r.InitialWindow != nil {
		set(transport.RequestInitialWindow, uint32(*r.InitialWindow))
	}
	if r.UserTimeout != nil {
		set(transport.RequestUserTimeout, units(r.UserTimeout, time.Second))
	}
	if r.DelayedAck != nil {
		set(transport.RequestDelayedACK, units(r.DelayedAck, time.Millisecond))
	}
	if r.Schedule != "" {
		set(transport.RequestSchedule, uint32(numbers.OfName(r.Schedule)))
	}
	if r.DelayThreshold != nil {
		set(transport.RequestDelayThreshold, units(r.DelayThreshold, time.Millisecond))
	}
	if r.InactivityTimeout != nil {
		set(transport.RequestInactivityTimeout, units(r.InactivityTimeout, time.Second))
	}
	return asked, number
}

// RatesByPath are those that are asked for, by the names of the paths; nil for none.
func RatesByPath(r *v1alpha1.TransportRequest) map[string]uint32 {
	if r == nil || len(r.Rates) == 0 {
		return nil
	}
	rates := map[string]uint32{}
	for i := range r.Rates {
		rates[string(r.Rates[i].Path)] = uint32(numbers.OfRate(r.Rates[i].Rate.Value()))
	}
	return rates
}

func accept(e *transport.TransportExchange, a *v1alpha1.TransportAcceptance) {
	to := &e.Acceptance
	for _, cidr := range a.From[:min(len(a.From), len(e.From))] {
		prefix, err := netip.ParsePrefix(string(cidr))
		if err != nil {
			continue // the API takes none of these
		}
		e.From[e.Prefixes] = prefixOf(prefix)
		e.Prefixes++
	}
	for _, name := range a.CongestionControls[:min(len(a.CongestionControls), len(to.Hash))] {
		to.Allowed |= 1 << transport.RequestCongestionControl
		to.Hash[to.CongestionControls] = uint32(numbers.OfName(name))
		to.CongestionControl[to.CongestionControls].Name = nameOf(name)
		to.CongestionControls++
	}
	if a.MaxInitialWindow != nil {
		to.Allowed |= 1 << transport.RequestInitialWindow
		to.MostInitialWindow = uint32(*a.MaxInitialWindow)
	}
	if a.MaxUserTimeout != nil {
		to.Allowed |= 1 << transport.RequestUserTimeout
		to.MostUserTimeout = units(a.MaxUserTimeout, time.Millisecond)
	}
	if a.MinDelayedAck != nil {
		to.Allowed |= 1 << transport.RequestDelayedACK
		to.LeastDelayedAck = units(a.MinDelayedAck, time.Microsecond)
	}
	if a.MinRate != nil {
		to.Allowed |= 1 << transport.RequestRate
		to.LeastRate = uint64(a.MinRate.Value() / 8)
	}
	for i, name := range a.Schedules[:min(len(a.Schedules), len(to.Strategy))] {
		to.Allowed |= 1 << transport.RequestSchedule
		to.Strategy[i] = uint32(numbers.OfName(name))
	}
	if a.MinDelayThreshold != nil {
		to.Allowed |= 1 << transport.RequestDelayThreshold
		to.LeastDelayThreshold = units(a.MinDelayThreshold, time.Millisecond)
	}
	if a.MaxInactivityTimeout != nil {
		to.Allowed |= 1 << transport.RequestInactivityTimeout
		to.MostInactivityTimeout = units(a.MaxInactivityTimeout, time.Second)
	}
}

// units rounds up: what is shorter than a unit is no time on the wire.
func units(of *metav1.Duration, unit time.Duration) uint32 {
	return uint32((of.Duration + unit - 1) / unit)
}

// maskOf is a prefix as the programs compare it.
func maskOf(prefix netip.Prefix) (address, mask [4]uint32) {
	length := prefix.Bits()
	if prefix.Addr().Is4() {
		length += 96
	}
	var ones [16]byte
	for i := range length {
		ones[i/8] |= 0x80 >> (i % 8)
	}
	return bpf.Words(prefix.Masked().Addr()), bpf.Words(netip.AddrFrom16(ones))
}

func nameOf(name string) (of [16]int8) {
	for i := range min(len(name), len(of)-1) {
		of[i] = int8(name[i])
	}
	return of
}

// requestFields are the names of what can be accepted, in a policy.
var requestFields = [transport.Requests]string{
	transport.RequestUserTimeout:       "maxUserTimeout",
	transport.RequestInitialWindow:     "maxInitialWindow",
	transport.RequestCongestionControl: "congestionControls",
	transport.RequestDelayedACK:        "minDelayedAck",
	transport.RequestRate:              "minRate",
	transport.RequestSchedule:          "schedules",
	transport.RequestDelayThreshold:    "minDelayThreshold",
	transport.RequestInactivityTimeout: "maxInactivityTimeout",
}

// refusedRequests names what was accepted of peers and the kernel refused to some socket.
func refusedRequests(failed uint32) string {
	var names []string
	for request, name := range requestFields {
		if name != "" && failed&(1<<request) != 0 {
			names = append(names, "spec.transport.accept."+name)
		}
	}
	return strings.Join(names, ", ")
}

// unknownAccepted names the congestion controls that peers may choose and this kernel
// lacks.
func unknownAccepted(a *v1alpha1.TransportAcceptance) string {
	if a == nil {
		return ""
	}
	var unknown []string
	for _, name := range a.CongestionControls {
		if err := pace.MustKnow(name); err != nil {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return ""
	}
	return fmt.Sprintf("spec.transport.accept.congestionControls: this node's kernel has no %s, so no peer gets it", strings.Join(unknown, ", "))
}
