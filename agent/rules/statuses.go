// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

// statuses say for each endpoint how its rules are carried out.
type statuses struct {
	chains   *chains.Chains
	programs *adminPrograms
	pacing   *pacing
	pins     *inspect.Pins
	log      logr.Logger
	last     map[types.UID][]v1alpha1.RuleStatus // as they were described last
}

// describe adds to a report what endpoints' statuses say of rules: the chain where no
// part of it failed.
func (s *statuses) describe(model *node.Model, report *node.Report) {
	s.last = s.ofRules(model)
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		chain, rules := endpoint.Chain, s.last[endpoint.UID]
		if chain == "" || endpoint.Found == nil {
			continue
		}
		if report.Endpoints[endpoint.UID].Failed != nil {
			chain = ""
		}
		report.Describe(endpoint.UID, func(status *v1alpha1.EndpointStatus) { status.Rules, status.Chain = rules, chain })
	}
}

func (s *statuses) ofRules(model *node.Model) map[types.UID][]v1alpha1.RuleStatus {
	limited := s.limitedSubflows()
	overlaid := hasOverlay(model)
	all := map[types.UID][]v1alpha1.RuleStatus{}
	for _, attached := range s.chains.Endpoints() {
		var manager v1alpha1.SubflowManager
		endpoint := model.Endpoint(attached.UID)
		if endpoint != nil {
			manager = endpoint.Subflows.Manager
		}
		of := inspect.StatusOf(attached.Rules, limited[attached.Name], s.last[attached.UID])
		if endpoint != nil && endpoint.HasGuest() {
			all[attached.UID] = s.programs.loaded.addGuestProblems(of, attached.Rules)
			continue
		}
		of = s.programs.loaded.addProblems(of, attached.Rules, manager)
		of = addUnasked(of, attached.Rules, s.pacing.failure)
		all[attached.UID] = addHidden(of, &attached, overlaid)
	}
	return all
}

// limitedSubflows are those of endpoints with rules that limit rates, by endpoint. No
// others are read: a node may have tens of thousands.
func (s *statuses) limitedSubflows() map[string][]agentapi.Subflow {
	of, interfaces := map[string][]agentapi.Subflow{}, []int{}
	for _, attached := range s.chains.Endpoints() {
		if inspect.Limits(attached.Rules) {
			of[attached.Name], interfaces = nil, append(interfaces, attached.Interface)
		}
	}
	if len(of) == 0 {
		return of
	}
	err := s.pins.EachSubflowOf(interfaces, func(subflow *agentapi.Subflow) {
		if before, limited := of[subflow.Endpoint]; limited && len(subflow.Limits) > 0 {
			kept := *subflow
			kept.Limits = slices.Clone(subflow.Limits)
			of[subflow.Endpoint] = append(before, kept)
		}
	})
	if err != nil {
		s.log.Error(err, "failed to read how rates of subflows are limited")
	}
	return of
}
