// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"sync/atomic"

	"github.com/cilium/ebpf"

	programs "braid.dev/braid/bpf/proxy"
)

// errBusy is why a connection goes on untouched that the proxy has no hand free for.
var errBusy = errors.New("too many servers are being asked")

// outcomes count what became of connections, but for what the programs count themselves.
// The agent of the node reads them in the map: the proxy has no metrics of its own.
type outcomes struct{ busy, noAnswer, relayed, reset atomic.Uint64 }

// untouched counts a connection that goes on as the client's own.
func (o *outcomes) untouched(why error) {
	if errors.Is(why, errBusy) {
		o.busy.Add(1)
	} else {
		o.noAnswer.Add(1)
	}
}

// tell writes them for the agent. A failure is no reason to end a connection.
func (p *Proxy) tell() {
	if err := p.writeOutcomes(); err != nil {
		p.options.Log.Error(err, "failed to update the node's metrics of the proxy")
	}
}

func (p *Proxy) writeOutcomes() (failed error) {
	for kind, count := range map[uint32]uint64{
		programs.OutcomeBusy: p.outcomes.busy.Load(), programs.OutcomeNoAnswer: p.outcomes.noAnswer.Load(),
		programs.OutcomeRelayed: p.outcomes.relayed.Load(), programs.OutcomeReset: p.outcomes.reset.Load(),
		programs.OutcomeNow: uint64(p.Connections()),
	} {
		failed = errors.Join(failed, p.from.Outcomes.Update(kind, count, ebpf.UpdateExist))
	}
	return failed
}
