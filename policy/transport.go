// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"

	"braid.dev/braid/api/v1alpha1"
)

// transportOf is what a pod's sockets get: what the winner gives, within the guardrails.
func transportOf(winner *compiledPolicy, g *guardrails, d *Decision) *v1alpha1.Transport {
	given := winner.spec.Transport
	if given == nil {
		return nil
	}
	within := *given
	if g != nil {
		for _, p := range g.policies {
			if bounds := p.guardrails.Transport; bounds != nil {
				d.bound(&within, bounds, guardrailsString(p))
			}
		}
	}
	if within == (v1alpha1.Transport{}) {
		return nil
	}
	d.Transport = describeTransport(&within)
	return &within
}

// bound brings settings within the bounds of one guardrail, and tells what that changed.
func (d *Decision) bound(t *v1alpha1.Transport, bounds *v1alpha1.TransportBounds, by string) {
	if name := t.CongestionControl; name != "" && len(bounds.CongestionControls) > 0 && !slices.Contains(bounds.CongestionControls, name) {
		t.CongestionControl = ""
		d.TransportBounded = append(d.TransportBounded, fmt.Sprintf("congestionControl %s is left out: %s allow %s", name, by, strings.Join(bounds.CongestionControls, ", ")))
	}
	if most := bounds.MaxInitialWindow; most != nil && t.InitialWindow != nil && *t.InitialWindow > *most {
		t.InitialWindow = most
		d.TransportBounded = append(d.TransportBounded, fmt.Sprintf("initialWindow is %d: %s allow no more", *most, by))
	}
	if most := bounds.MaxInactivityTimeout; most != nil && t.InactivityTimeout != nil && t.InactivityTimeout.Duration > most.Duration {
		t.InactivityTimeout = most
		d.TransportBounded = append(d.TransportBounded, fmt.Sprintf("inactivityTimeout is %s: %s allow no more", most.Duration, by))
	}
	if most := bounds.MaxReceiveBuffer; most != nil && t.ReceiveBuffer != nil && t.ReceiveBuffer.Cmp(*most) > 0 {
		t.ReceiveBuffer = most
		d.TransportBounded = append(d.TransportBounded, fmt.Sprintf("receiveBuffer is %s: %s allow no more", most, by))
	}
}

// describeTransport tells settings in a line, by the fields' names.
func describeTransport(t *v1alpha1.Transport) string {
	var parts []string
	add := func(format string, value any) { parts = append(parts, fmt.Sprintf(format, value)) }
	if t.CongestionControl != "" {
		add("congestionControl %s", t.CongestionControl)
	}
	if t.InitialWindow != nil {
		add("initialWindow %d", *t.InitialWindow)
	}
	if t.UserTimeout != nil {
		add("userTimeout %s", t.UserTimeout.Duration)
	}
	if t.Keepalive != nil {
		add("keepalive%s", describeKeepalive(t.Keepalive))
	}
	if t.DelayedAck != nil {
		add("delayedAck %s", t.DelayedAck.Duration)
	}
	if t.MinRTO != nil {
		add("minRTO %s", t.MinRTO.Duration)
	}
	if t.InactivityTimeout != nil {
		add("inactivityTimeout %s", t.InactivityTimeout.Duration)
	}
	if t.ReceiveBuffer != nil {
		add("receiveBuffer %s", t.ReceiveBuffer)
	}
	return strings.Join(parts, ", ")
}

func describeKeepalive(k *v1alpha1.Keepalive) (text string) {
	if k.Idle != nil {
		text += fmt.Sprintf(" after %s", k.Idle.Duration)
	}
	if k.Interval != nil {
		text += fmt.Sprintf(" every %s", k.Interval.Duration)
	}
	if k.Probes != nil {
		text += fmt.Sprintf(" for %d probes", *k.Probes)
	}
	return text
}

// effectOfTransport says in words what bounds come to.
func effectOfTransport(bounds *v1alpha1.TransportBounds) string {
	var parts []string
	if len(bounds.CongestionControls) > 0 {
		parts = append(parts, "congestionControl "+strings.Join(bounds.CongestionControls, ", "))
	}
	if bounds.MaxInitialWindow != nil {
		parts = append(parts, fmt.Sprintf("initialWindow up to %d", *bounds.MaxInitialWindow))
	}
	if bounds.MaxInactivityTimeout != nil {
		parts = append(parts, fmt.Sprintf("inactivityTimeout up to %s", bounds.MaxInactivityTimeout.Duration))
	}
	if bounds.MaxReceiveBuffer != nil {
		parts = append(parts, fmt.Sprintf("receiveBuffer up to %s", bounds.MaxReceiveBuffer))
	}
	return "transport: " + strings.Join(parts, ", ")
}
