// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// hook is one of a relay's programs at its client's interface.
type hook struct {
	at      ebpf.AttachType
	program *ebpf.Program
	anchor  link.Anchor
	// inner is the agent's program that runs between the others and the client's relay, and
	// is to see the packets of the relay alone.
	inner string
	// first is true where ours comes before it.
	first bool
	link  link.Link
}

func (r *relay) hooks() []*hook {
	return []*hook{
		{at: ebpf.AttachTCXEgress, program: r.proxy.to.ToClient, anchor: link.Tail(), inner: "to_endpoint"},
		{at: ebpf.AttachTCXIngress, program: r.proxy.from.FromClient, anchor: link.Head(), inner: "from_endpoint", first: true},
	}
}

// order moves programs that the agent's came to be on the wrong side of. For the moment
// between, packets pass that their receivers take for strays.
func (r *relay) order() (failed error) {
	for _, h := range r.atClient {
		err := r.proxy.inNode(func() error {
			if r.isInOrder(h) {
				return nil
			}
			return errors.Join(h.link.Close(), r.attachHook(h))
		})
		failed = errors.Join(failed, err)
	}
	return failed
}

func (r *relay) attachHook(h *hook) (err error) {
	h.link, err = link.AttachTCX(link.TCXOptions{Interface: r.client.Interface, Program: h.program, Attach: h.at, Anchor: h.anchor})
	return wrap("attaching to the client's interface", err)
}

// isInOrder is true too where nobody can tell.
func (r *relay) isInOrder(h *hook) bool {
	query, err := link.QueryPrograms(link.QueryOptions{Target: r.client.Interface, Attach: h.at})
	if err != nil {
		return true
	}
	own, inner := -1, -1
	info, err := h.program.Info()
	if err != nil {
		return true
	}
	id, _ := info.ID()
	for place, attached := range query.Programs {
		switch {
		case attached.ID == id:
			own = place
		case nameOf(attached.ID) == h.inner:
			inner = place
		}
	}
	return own < 0 || inner < 0 || own < inner == h.first
}

func nameOf(id ebpf.ProgramID) string {
	opened, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer opened.Close()
	info, err := opened.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

func (r *relay) detach() (failed error) {
	for _, h := range slices.Backward(r.atClient) {
		if h.link != nil {
			failed = errors.Join(failed, h.link.Close())
		}
	}
	return failed
}
