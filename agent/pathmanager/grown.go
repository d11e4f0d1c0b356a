// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"time"

	"braid.dev/braid/internal/mptcpnl"
)

// subscribe has the kernel keep young connections where further subflows wait. Where it
// cannot, the agent hears of them all.
func (f *follower) subscribe() (*mptcpnl.Subscription, error) {
	subscription, err := mptcpnl.Subscribe(int(f.namespace.file.Fd()))
	after := f.tracker.settings.youngFor()
	if err != nil || after == 0 {
		return subscription, err
	}
	young, err := theYoung()
	if err == nil {
		f.young, err = young.follow(subscription, after)
	}
	if err != nil {
		f.log.Error(err, "failed to keep young connections in the kernel: the agent follows them all")
	}
	return subscription, nil
}

func (f *follower) letGo() {
	if f.young != nil {
		f.young.close()
		f.young = nil
	}
}

// handleGrown takes over the connections that are not young any more.
func (f *follower) handleGrown() {
	for _, g := range f.young.take() {
		f.take(g)
	}
}

func (f *follower) take(g grown) {
	f.tracker.handle(g.event, g.began)
	f.announcer.handle(g.event, time.Now())
}

// isYoung tells whether the kernel keeps the connection that an event begins. One that
// something else happens to is taken over at once.
func (f *follower) isYoung(event mptcpnl.Event) bool {
	if f.young == nil {
		return false
	}
	if began, ok := event.(mptcpnl.ConnectionEvent); ok {
		return began.Kind == mptcpnl.ConnectionEstablished && f.young.isKept(began.Token)
	}
	token, ok := mptcpnl.TokenOf(event)
	if ok && f.tracker.connections[token] == nil {
		if g, kept := f.young.adopt(token); kept {
			f.take(g)
		}
	}
	return false
}
