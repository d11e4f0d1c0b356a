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
	if !acceptsAnything(within.Accept) {
		within.Accept = nil
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
	if t.Accept != nil {
		accepted := *t.Accept // the policy's stays as it is
		t.Accept = &accepted
		d.boundAccepted(t.Accept, bounds, by)
	}
}

// boundAccepted brings what peers may ask for within the bounds of one guardrail.
func (d *Decision) boundAccepted(a *v1alpha1.TransportAcceptance, bounds *v1alpha1.TransportBounds, by string) {
	if len(bounds.CongestionControls) > 0 {
		allowed := func(name string) bool { return slices.Contains(bounds.CongestionControls, name) }
		kept := slices.DeleteFunc(slices.Clone(a.CongestionControls), func(name string) bool { return !allowed(name) })
		if len(kept) < len(a.CongestionControls) {
			d.TransportBounded = append(d.TransportBounded, fmt.Sprintf("accept.congestionControls has none but %s: %s allow no others", strings.Join(bounds.CongestionControls, ", "), by))
		}
		a.CongestionControls = kept
	}
	if most := bounds.MaxInitialWindow; most != nil && a.MaxInitialWindow != nil && *a.MaxInitialWindow > *most {
		a.MaxInitialWindow = most
		d.TransportBounded = append(d.TransportBounded, fmt.Sprintf("accept.maxInitialWindow is %d: %s allow no more", *most, by))
	}
	if most := bounds.MaxInactivityTimeout; most != nil && a.MaxInactivityTimeout != nil && a.MaxInactivityTimeout.Duration > most.Duration {
		a.MaxInactivityTimeout = most
		d.TransportBounded = append(d.TransportBounded, fmt.Sprintf("accept.maxInactivityTimeout is %s: %s allow no more", most.Duration, by))
	}
}

// acceptsAnything is false also where guardrails left nothing.
func acceptsAnything(a *v1alpha1.TransportAcceptance) bool {
	return a != nil && (len(a.CongestionControls) > 0 || a.MaxInitialWindow != nil || a.MaxUserTimeout != nil ||
		a.MinDelayedAck != nil || a.MinRate != nil || len(a.Schedules) > 0 || a.MinDelayThreshold != nil || a.MaxInactivityTimeout != nil)
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
	if t.Request != nil {
		add("asks peers for %s", describeRequest(t.Request))
	}
	if t.Accept != nil {
		add("accepts %s", describeAcceptance(t.Accept))
	}
	return strings.Join(parts, ", ")
}

func describeRequest(r *v1alpha1.TransportRequest) string {
	var parts []string
	add := func(format string, values ...any) { parts = append(parts, fmt.Sprintf(format, values...)) }
	if r.CongestionControl != "" {
		add("congestionControl %s", r.CongestionControl)
	}
	if r.InitialWindow != nil {
		add("initialWindow %d", *r.InitialWindow)
	}
	if r.UserTimeout != nil {
		add("userTimeout %s", r.UserTimeout.Duration)
	}
	if r.DelayedAck != nil {
		add("delayedAck %s", r.DelayedAck.Duration)
	}
	for i := range r.Rates {
		add("%s on %s", r.Rates[i].Rate.String(), r.Rates[i].Path)
	}
	if r.Schedule != "" {
		add("schedule %s", r.Schedule)
	}
	if r.DelayThreshold != nil {
		add("delayThreshold %s", r.DelayThreshold.Duration)
	}
	if r.InactivityTimeout != nil {
		add("inactivityTimeout %s", r.InactivityTimeout.Duration)
	}
	return strings.Join(parts, " and ")
}

func describeAcceptance(a *v1alpha1.TransportAcceptance) string {
	var parts []string
	add := func(format string, value any) { parts = append(parts, fmt.Sprintf(format, value)) }
	if len(a.CongestionControls) > 0 {
		add("congestionControl %s", strings.Join(a.CongestionControls, " or "))
	}
	if a.MaxInitialWindow != nil {
		add("initialWindow up to %d", *a.MaxInitialWindow)
	}
	if a.MaxUserTimeout != nil {
		add("userTimeout up to %s", a.MaxUserTimeout.Duration)
	}
	if a.MinDelayedAck != nil {
		add("delayedAck from %s", a.MinDelayedAck.Duration)
	}
	if a.MinRate != nil {
		add("rates from %s", a.MinRate)
	}
	if len(a.Schedules) > 0 {
		add("schedule %s", strings.Join(a.Schedules, " or "))
	}
	if a.MinDelayThreshold != nil {
		add("delayThreshold from %s", a.MinDelayThreshold.Duration)
	}
	if a.MaxInactivityTimeout != nil {
		add("inactivityTimeout up to %s", a.MaxInactivityTimeout.Duration)
	}
	from := make([]string, len(a.From))
	for i, prefix := range a.From {
		from[i] = string(prefix)
	}
	return strings.Join(parts, " and ") + " from " + strings.Join(from, " and ")
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
