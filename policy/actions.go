// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"braid.dev/braid/api/v1alpha1"
)

// actionRule is what the compile knows of an action of the API. What is nil or empty
// is nothing to look at.
type actionRule struct {
	// parameter is the field that the action needs, and lacks is true where it is not
	// given. All other functions are called where it is given alone.
	parameter string
	lacks     func(*v1alpha1.Action) bool
	// check looks for problems of the parameters.
	check func(k *ruleCheck, a *v1alpha1.Action, at *field.Path)
	// governs is true where the effect is on what comes after the packet.
	governs bool
	// unsuitable says why the action never has an effect on what a rule matches.
	unsuitable func(a *v1alpha1.Action, match *condition) string
	// dishonours says why the action goes beyond what a rule matches.
	dishonours func(a *v1alpha1.Action, match *condition) string
	// conflict says why two actions of this type cannot both be carried out.
	conflict func(a, b *v1alpha1.Action) string
	// excludes is another type that cannot be beside this one, because of why.
	excludes v1alpha1.ActionType
	why      string
	// asked is true where peers can be asked for it (at: Peer).
	asked bool
	// ends is true where nothing runs after the action, uncertain where it may be so.
	ends, uncertain bool
}

// actionRules has all actions of the API.
var actionRules = map[v1alpha1.ActionType]actionRule{
	v1alpha1.ActionRateLimit: {
		parameter: "rateLimit", lacks: func(a *v1alpha1.Action) bool { return a.RateLimit == nil },
		check: (*ruleCheck).rateLimit, governs: true, unsuitable: unsuitableRate, conflict: sameScope, asked: true,
	},
	v1alpha1.ActionSetBackup: {
		parameter: "setBackup", lacks: func(a *v1alpha1.Action) bool { return a.SetBackup == nil || a.SetBackup.Backup == nil },
		governs: true,
		conflict: func(a, b *v1alpha1.Action) string {
			return unless(*a.SetBackup.Backup == *b.SetBackup.Backup, "a subflow is either a backup or not")
		},
	},
	v1alpha1.ActionSuppressAddAddr: {
		unsuitable: func(_ *v1alpha1.Action, match *condition) string {
			return unless(!match.onlyTypes(announcingNothing), "none of them announces an address; match AddAddr, or leave packetTypes out")
		},
		excludes: v1alpha1.ActionReleaseAddAddr, why: "addresses are either hidden or given back",
	},
	v1alpha1.ActionReleaseAddAddr:   {},
	v1alpha1.ActionReportConnection: {},
	v1alpha1.ActionReportSubflow:    {},
	v1alpha1.ActionRecord:           {},
	v1alpha1.ActionDrop:             {ends: true},
	v1alpha1.ActionReset:            {ends: true},
	v1alpha1.ActionSchedule: {
		parameter: "schedule", lacks: func(a *v1alpha1.Action) bool { return a.Schedule == nil },
		check: (*ruleCheck).schedule, governs: true, unsuitable: unsuitableSchedule, dishonours: schedulesBeyond, asked: true,
		conflict: func(a, b *v1alpha1.Action) string {
			return unless(a.Schedule.Strategy == b.Schedule.Strategy, "one strategy schedules a connection")
		},
	},
	v1alpha1.ActionCongestion: {
		parameter: "congestion", lacks: func(a *v1alpha1.Action) bool { return a.Congestion == nil },
		check: (*ruleCheck).congestion, governs: true, asked: true,
		conflict: func(a, b *v1alpha1.Action) string {
			return unless(a.Congestion.Algorithm == b.Congestion.Algorithm, "a subflow has one congestion control")
		},
	},
	v1alpha1.ActionRunProgram: {
		parameter: "runProgram", lacks: func(a *v1alpha1.Action) bool { return a.RunProgram == nil },
		check: (*ruleCheck).runProgram, uncertain: true,
	},
}

func isAsked(a *v1alpha1.Action) bool { return a.At == v1alpha1.ActionAtPeer }

// asked are the actions that peers can be asked for.
func asked() (types []string) {
	for name, rule := range actionRules {
		if rule.asked {
			types = append(types, string(name))
		}
	}
	slices.Sort(types)
	return types
}

func unless(fine bool, why string) string {
	if fine {
		return ""
	}
	return why
}

// missingParameter is the field that an action lacks; empty when it has it.
func missingParameter(a *v1alpha1.Action) string {
	if rule := actionRules[a.Type]; rule.lacks != nil && rule.lacks(a) {
		return rule.parameter
	}
	return ""
}

func (k *ruleCheck) rateLimit(a *v1alpha1.Action, at *field.Path) {
	k.rate(&a.RateLimit.Rate, at.Child("rateLimit", "rate"))
	limit := a.RateLimit
	if isAsked(a) && (rateScope(limit) != v1alpha1.RateLimitPerSubflow || firstGiven(limit.Mechanism, v1alpha1.RateLimitAuto) != v1alpha1.RateLimitAuto) {
		k.add(at.Child("rateLimit"), v1alpha1.ReasonInvalidRule, "with at: Peer each subflow has the rate and the peer paces it; leave per and mechanism out")
	}
}

func (k *ruleCheck) schedule(a *v1alpha1.Action, at *field.Path) {
	if a.Schedule.Strategy != v1alpha1.StrategyEarliestCompletionFirst {
		if isAsked(a) {
			k.add(at.Child("schedule", "strategy"), v1alpha1.ReasonInvalidRule, "%s is a program of this policy; a peer is asked for %s", a.Schedule.Strategy, v1alpha1.StrategyEarliestCompletionFirst)
			return
		}
		k.program(a.Schedule.Strategy, v1alpha1.ProgramSchedule, at.Child("schedule", "strategy"))
	}
}

func (k *ruleCheck) congestion(a *v1alpha1.Action, at *field.Path) {
	isProgram := k.policy.program(a.Congestion.Algorithm) != nil // else the kernel's
	if isProgram && isAsked(a) {
		k.add(at.Child("congestion", "algorithm"), v1alpha1.ReasonInvalidRule, "%s is a program of this policy; a peer is asked for one that its own kernel has by name", a.Congestion.Algorithm)
		return
	}
	if isProgram {
		k.program(a.Congestion.Algorithm, v1alpha1.ProgramCongestion, at.Child("congestion", "algorithm"))
	}
}

func (k *ruleCheck) runProgram(a *v1alpha1.Action, at *field.Path) {
	k.program(a.RunProgram.Program, v1alpha1.ProgramAction, at.Child("runProgram", "program"))
}

func unsuitableRate(a *v1alpha1.Action, match *condition) string {
	if isAsked(a) {
		return unless(!match.onlyDirection(v1alpha1.DirectionFromEndpoint), "at: Peer bounds what the pod receives; leave direction out, or match ToEndpoint")
	}
	paced := a.RateLimit.Mechanism == v1alpha1.RateLimitPace
	return unless(!paced || !match.onlyDirection(v1alpha1.DirectionToEndpoint),
		"mechanism Pace governs the pod's own sockets, and others send them; use Auto, Window or Police")
}

func unsuitableSchedule(a *v1alpha1.Action, match *condition) string {
	if isAsked(a) {
		return unless(!match.onlyDirection(v1alpha1.DirectionFromEndpoint), "at: Peer distributes what the pod receives; leave direction out, or match ToEndpoint")
	}
	return unless(!match.onlyDirection(v1alpha1.DirectionToEndpoint), "it distributes what the pod sends, and others send them")
}

// schedulesBeyond: a strategy is of connections, from their first byte on. A program has
// all those of its pods.
func schedulesBeyond(a *v1alpha1.Action, match *condition) (why string) {
	if a.Schedule.Strategy != v1alpha1.StrategyEarliestCompletionFirst {
		return "a program schedules every connection of the pods; leave match out"
	}
	match.visit(func(part *condition) {
		if len(part.PacketTypes) > 0 || part.Sequence != nil || part.Sent != nil {
			why = "it schedules connections, and packetTypes, sequence and sent select some of their packets"
		}
		if part.Program != nil {
			why = "it schedules connections, and program answers for each packet"
		}
	})
	return why
}

func sameScope(a, b *v1alpha1.Action) string {
	scope := rateScope(a.RateLimit)
	return unless(scope != rateScope(b.RateLimit), fmt.Sprintf("there is one rate for each %s", scope))
}

// unsuitable says why an action never has an effect on what a rule matches; empty
// when it can have one.
func unsuitable(a *v1alpha1.Action, match *condition) string {
	rule := actionRules[a.Type]
	if rule.governs && match.onlyTypes(lastPackets) {
		return "it governs what comes after them, and nothing does"
	}
	if rule.unsuitable == nil {
		return ""
	}
	return rule.unsuitable(a, match)
}

// contradiction says why two actions cannot both be carried out; empty when they
// can. Their parameters are there, or are a problem of their own.
func contradiction(a, b *v1alpha1.Action) string {
	one, other := actionRules[a.Type], actionRules[b.Type]
	switch {
	case isAsked(a) != isAsked(b):
		return "" // each end has its own
	case missingParameter(a)+missingParameter(b) != "":
		return ""
	case a.Type == b.Type && one.conflict != nil:
		return one.conflict(a, b)
	case one.excludes == b.Type:
		return one.why
	case other.excludes == a.Type:
		return other.why
	}
	return ""
}
