// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pace"
)

// pacing does what rules ask of the pods' sockets. Where the node cannot, limits are
// enforced in packets.
type pacing struct {
	*pace.Pacer
	chains   *chains.Chains
	programs *adminPrograms
	log      logr.Logger
	failure  string // as it was logged last
}

// Apply only logs why sockets are not paced: rules hold without. What they ask in vain is
// in their statuses.
func (p *pacing) Apply(_ context.Context, model *node.Model) (report node.Report) {
	var wanted []pace.Endpoint
	for _, g := range governedBy(p.chains, model) {
		if endpoint, asks, _ := pace.Of(g.Number, g.Namespace, g.Rules, p.programs.loaded.algorithm); asks {
			wanted = append(wanted, endpoint)
		}
	}
	failure := ""
	if err := p.Pacer.Apply(wanted); err != nil {
		if failure = err.Error(); failure != p.failure {
			p.log.Error(err, "failed to pace sockets: rate limits are enforced in packets")
		}
	}
	p.failure = failure
	return report
}

func (p *pacing) Remove(context.Context) error { return p.Pacer.Remove() }
