// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/transport"
)

// settingsOf are what the programs are told of a policy's transport, with an exchange of
// this revision; 0 for none.
func settingsOf(of *v1alpha1.Transport, exchange uint32) transport.TransportSettings {
	s := &builder{}
	if of.CongestionControl != "" {
		s.Given |= 1 << transport.SettingCongestionControl
		s.CongestionControl.Name = nameOf(of.CongestionControl)
	}
	s.number(transport.SettingInitialWindow, of.InitialWindow)
	s.time(transport.SettingUserTimeout, of.UserTimeout, time.Millisecond)
	s.time(transport.SettingDelayedACK, of.DelayedAck, time.Microsecond)
	s.time(transport.SettingMinRto, of.MinRTO, time.Microsecond)
	if of.ReceiveBuffer != nil {
		s.number(transport.SettingReceiveBuffer, new(int32(of.ReceiveBuffer.Value())))
	}
	if k := of.Keepalive; k != nil {
		s.number(transport.SettingKeepalive, new(int32(1)))
		s.time(transport.SettingKeepaliveIdle, k.Idle, time.Second)
		s.time(transport.SettingKeepaliveInterval, k.Interval, time.Second)
		s.number(transport.SettingKeepaliveProbes, k.Probes)
	}
	if exchange != 0 {
		s.Given |= 1 << transport.SettingExchange
	}
	s.Revision = revision(&s.TransportSettings, exchange)
	return s.TransportSettings
}

type builder struct{ transport.TransportSettings }

func (b *builder) number(setting int, value *int32) {
	if value == nil {
		return
	}
	b.Given |= 1 << setting
	b.Value[setting] = uint32(*value)
}

// time rounds up: what is shorter than a unit is no time for the kernel.
func (b *builder) time(setting int, value *metav1.Duration, unit time.Duration) {
	if value == nil {
		return
	}
	b.number(setting, new(int32((value.Duration+unit-1)/unit)))
}

// revision is another one for other settings, and never 0.
func revision(s *transport.TransportSettings, exchange uint32) uint32 {
	sum := fnv.New32a()
	_, _ = fmt.Fprint(sum, s.Given, s.Value, s.CongestionControl.Name, exchange)
	return sum.Sum32() | 1
}

// fields are the names of the settings in a policy.
var fields = map[int]string{
	transport.SettingCongestionControl: "congestionControl",
	transport.SettingInitialWindow:     "initialWindow",
	transport.SettingUserTimeout:       "userTimeout",
	transport.SettingKeepalive:         "keepalive",
	transport.SettingKeepaliveIdle:     "keepalive.idle",
	transport.SettingKeepaliveInterval: "keepalive.interval",
	transport.SettingKeepaliveProbes:   "keepalive.probes",
	transport.SettingDelayedACK:        "delayedAck",
	transport.SettingMinRto:            "minRTO",
	transport.SettingReceiveBuffer:     "receiveBuffer",
}

// refusals names the settings that the kernel refused to some socket; empty for none.
func refusals(refused uint32) string {
	var names []string
	for setting, name := range fields {
		if refused&(1<<setting) != 0 {
			names = append(names, "spec.transport."+name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
