// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"
	"strings"
)

// GuardrailsOwner is what PlanRule.Policy says of rules that guardrails and hints
// come to.
const GuardrailsOwner = "Guardrails"

// IsTenants is true for a rule of an MPTCPPolicy: it may not undo what rules of the
// cluster ask for.
func (r *PlanRule) IsTenants() bool { return strings.HasPrefix(r.Policy, "MPTCPPolicy/") }

// ActsAtPeer is true of a rule with an action that other ends are asked for (at: Peer).
func (r *Rule) ActsAtPeer() bool {
	return slices.ContainsFunc(r.Actions, func(action Action) bool { return action.At == ActionAtPeer })
}
