// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"

	"braid.dev/braid/agent/transport/numbers"
	"braid.dev/braid/api/v1alpha1"
)

// Of is what a chain asks of its endpoint's sockets; asks is false when it asks
// nothing. The rules are those of the chain, in its order. The algorithm function
// names the congestion control that a rule's own name stands for, as a block
// registered it; nil takes all names as they are. The error says which rules cannot
// work on this node; the Endpoint is what the others ask.
func Of(number uint32, path string, rules []v1alpha1.PlanRule, algorithm func(rule *v1alpha1.PlanRule, name string) string) (of Endpoint, asks bool, err error) {
	of = Endpoint{Number: number, Path: path, Revision: revision(rules), Congestions: map[int]string{}, Requests: requestsOf(rules)}
	asks = len(of.Requests) > 0
	shared := false
	for i := range rules {
		if !rules[i].IsTenants() {
			of.Binding = i + 1
		}
		for _, action := range rules[i].Actions {
			if action.At == v1alpha1.ActionAtPeer {
				continue
			}
			shared = shared || action.Type == v1alpha1.ActionRateLimit && isShared(action.RateLimit)
			switch {
			case action.Type == v1alpha1.ActionRateLimit && isPaced(action.RateLimit):
				asks = true
			case action.Type == v1alpha1.ActionCongestion && action.Congestion != nil:
				name := action.Congestion.Algorithm
				if algorithm != nil {
					name = algorithm(&rules[i], name)
				}
				if unknown := MustKnow(name); unknown != nil {
					err = errors.Join(err, fmt.Errorf("rule %s of %s: %w", rules[i].Name, rules[i].Policy, unknown))
					continue
				}
				asks = true
				of.Congestions[i] = name
			}
		}
	}
	of.SharedLimits = asks && shared // of what is done here
	return of, asks, err
}

// Request is what a rule asks of peers, in the form of package numbers; 0 for nothing. Those
// with at: Peer ask, and limits of what each subflow brings in that choose their mechanism
// themselves: a peer that accepts sends no more, and nothing is dropped for the limit.
type Request struct{ Rate, CongestionControl, Schedule uint16 }

// requestsOf are those of a chain's rules, by their places.
func requestsOf(rules []v1alpha1.PlanRule) map[int]Request {
	requests := map[int]Request{}
	for i := range rules {
		var request Request
		for _, action := range rules[i].Actions {
			switch atPeer := action.At == v1alpha1.ActionAtPeer; {
			case action.RateLimit != nil && (atPeer || asksToo(&rules[i].Rule, action.RateLimit)):
				request.Rate = numbers.OfRate(action.RateLimit.Rate.Value())
			case action.Congestion != nil && atPeer:
				request.CongestionControl = numbers.OfName(action.Congestion.Algorithm)
			case action.Schedule != nil && atPeer:
				request.Schedule = numbers.OfName(action.Schedule.Strategy)
			}
		}
		if request != (Request{}) {
			requests[i] = request
		}
	}
	return requests
}

// Asked is what the rules of a chain ask of the peer of a subflow which these match, a bit
// for each: of rates the least, and else what the last one asks that matches, of the cluster's
// before those of tenants. pace.bpf.c does the same for the sockets of pods.
func Asked(rules []v1alpha1.PlanRule, matching uint64) (asked Request) {
	var ofCluster Request
	requests := requestsOf(rules)
	for i := range rules {
		if matching&(1<<i) == 0 {
			continue
		}
		if rate := requests[i].Rate; rate != 0 && (asked.Rate == 0 || rate < asked.Rate) {
			asked.Rate = rate
		}
		of := &asked
		if !rules[i].IsTenants() {
			of = &ofCluster
		}
		of.CongestionControl = cmp.Or(requests[i].CongestionControl, of.CongestionControl)
		of.Schedule = cmp.Or(requests[i].Schedule, of.Schedule)
	}
	asked.CongestionControl = cmp.Or(ofCluster.CongestionControl, asked.CongestionControl)
	asked.Schedule = cmp.Or(ofCluster.Schedule, asked.Schedule)
	return asked
}

// asksToo tells whether a limit that is kept here is asked for as well.
func asksToo(rule *v1alpha1.Rule, limit *v1alpha1.RateLimit) bool {
	return rule.Match != nil && rule.Match.Direction == v1alpha1.DirectionToEndpoint && !isShared(limit) &&
		(limit.Mechanism == "" || limit.Mechanism == v1alpha1.RateLimitAuto)
}

// AsksPeers is true where some rule asks something of peers.
func AsksPeers(rules []v1alpha1.PlanRule) bool { return len(requestsOf(rules)) > 0 }

// revision is another number for other rules.
func revision(rules []v1alpha1.PlanRule) uint64 {
	sum := fnv.New64a()
	_ = json.NewEncoder(sum).Encode(rules) // neither can fail
	return sum.Sum64()
}

func isPaced(limit *v1alpha1.RateLimit) bool {
	return limit != nil && (limit.Mechanism == "" || limit.Mechanism == v1alpha1.RateLimitAuto || limit.Mechanism == v1alpha1.RateLimitPace)
}

func isShared(limit *v1alpha1.RateLimit) bool {
	return limit != nil && (limit.Per == v1alpha1.RateLimitPerConnection || limit.Per == v1alpha1.RateLimitPerEndpoint)
}

// MustKnow is an error for a congestion control that no socket here can use.
func MustKnow(name string) error {
	list, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		return fmt.Errorf("asking for the kernel's congestion controls: %w", err)
	}
	if known := strings.Fields(string(list)); !slices.Contains(known, name) {
		return fmt.Errorf("this node's kernel has no congestion control %q, but %s", name, strings.Join(known, ", "))
	}
	return nil
}
