// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"unsafe"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// desired is an endpoint with the chain that it shall have.
type desired struct {
	*node.Endpoint
	rules []v1alpha1.PlanRule
	compiled
}

type compiled struct {
	chain   *Chain
	content content
	err     error
}

// desiredOf are the endpoints of the model that have rules and an interface, not yet
// compiled. It leaves out what the kernel's maps could not hold.
func desiredOf(model *node.Model, failed failures) (all []desired) {
	rules, seen := model.Chains(), map[types.UID]bool{}
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		uid := endpoint.UID
		switch {
		case endpoint.Chain == "" || endpoint.HostInterface == 0:
			continue
		case len(rules[endpoint.Chain]) == 0:
			failed.add(uid, fmt.Errorf("the plan has no chain %s", endpoint.Chain))
			continue
		case endpoint.Number == 0:
			failed.add(uid, errors.New("the node has no number for the endpoint: it has too many"))
			continue
		case uid == "" || len(uid) >= uidLength || seen[uid]:
			failed.add(uid, fmt.Errorf("endpoint %s: the UID %q is empty, too long or not the only one", endpoint.FullName(), uid))
			continue
		}
		seen[uid] = true
		all = append(all, desired{Endpoint: endpoint, rules: rules[endpoint.Chain]})
	}
	return all
}

// compileAll compiles each list of rules once, also where endpoints share it. It
// leaves out those that cannot be.
func compileAll(wanted []desired, surroundings Surroundings, failed failures) (all []desired) {
	known := map[*v1alpha1.PlanRule]compiled{}
	for _, d := range wanted {
		result, done := known[&d.rules[0]]
		if !done {
			result = compileRules(d.rules, surroundings)
			known[&d.rules[0]] = result
		}
		if result.err != nil {
			failed.add(d.UID, result.err)
			continue
		}
		d.compiled = result
		all = append(all, d)
	}
	return all
}

func compileRules(rules []v1alpha1.PlanRule, surroundings Surroundings) (result compiled) {
	if result.chain, result.err = Compile(rules, surroundings); result.err != nil {
		return result
	}
	hash := sha256.New()
	hash.Write(unsafe.Slice((*byte)(unsafe.Pointer(result.chain)), unsafe.Sizeof(Chain{})))
	for i := range rules {
		if result.content.Rule[i], result.err = fingerprint(&rules[i]); result.err != nil {
			return result
		}
		hash.Write(binary.NativeEndian.AppendUint64(nil, result.content.Rule[i]))
	}
	hash.Sum(result.content.Digest[:0])
	return result
}

// fingerprint tells whether a rule is the same as before; it is never 0.
func fingerprint(rule *v1alpha1.PlanRule) (uint64, error) {
	text, err := json.Marshal(rule)
	if err != nil {
		return 0, fmt.Errorf("rule %q of %s: %w", rule.Name, rule.Policy, err)
	}
	hash := fnv.New64a()
	hash.Write(text)
	return max(hash.Sum64(), 1), nil
}
