// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf"
	programs "braid.dev/braid/bpf/pathmanager"
	"braid.dev/braid/internal/mptcpnl"
)

const (
	// youngLooks is how often young connections are looked at while they become old
	// enough, and youngRest how much longer than a look the pause after it is at least.
	youngLooks = 2
	youngRest  = 50
	youngBatch = 512
)

// grown is a connection that is not young any more.
type grown struct {
	event mptcpnl.ConnectionEvent
	began time.Time
}

// young keeps connections in the kernel until they are old enough to be managed: those
// that close before cost the agent nothing, neither a wake-up nor a system call. It is
// safe for concurrent use.
type young struct {
	objects programs.YoungObjects
	awake   chan struct{}
	looks   sync.Mutex // guards what one look has read
	keys    [youngBatch]programs.YoungYoungKey
	values  [youngBatch]programs.YoungYoungConnection

	mutex     sync.Mutex
	followers map[uint64]*adolescents // by the cookie of their socket
	stop      chan struct{}           // of the one that looks; nil while nobody does
	stopped   chan struct{}
}

// adolescents are the connections of one follower that have grown.
type adolescents struct {
	young  *young
	cookie uint64
	after  time.Duration
	ready  chan struct{}

	mutex sync.Mutex
	grown []grown
}

// theYoung are those of all followers, which one program and one look serve.
var theYoung = sync.OnceValues(func() (*young, error) {
	y := &young{awake: make(chan struct{}, 1), followers: map[uint64]*adolescents{}}
	_ = rlimit.RemoveMemlock() // of kernels before 5.11; loading tells
	if err := programs.LoadYoungObjects(&y.objects, nil); err != nil {
		return nil, fmt.Errorf("loading the filter of events: %w", err)
	}
	return y, nil
})

// follow keeps the connections of a subscription until they are so old.
func (y *young) follow(subscription *mptcpnl.Subscription, after time.Duration) (*adolescents, error) {
	cookie, err := subscription.Filter(y.objects.Young.FD())
	if err != nil {
		return nil, err
	}
	a := &adolescents{young: y, cookie: cookie, after: after, ready: make(chan struct{}, 1)}
	y.mutex.Lock()
	defer y.mutex.Unlock()
	y.followers[cookie] = a
	if y.stop == nil {
		y.stop, y.stopped = make(chan struct{}), make(chan struct{})
		go y.run(y.stop, y.stopped)
	}
	y.wake()
	return a, nil
}

// close forgets the connections. The last one ends the looking.
func (a *adolescents) close() {
	y := a.young
	y.mutex.Lock()
	delete(y.followers, a.cookie)
	var stopped chan struct{}
	if len(y.followers) == 0 {
		close(y.stop)
		y.stop, stopped = nil, y.stopped
	}
	y.mutex.Unlock()
	if stopped != nil {
		<-stopped
	}
	y.forget(a.cookie)
}

// forget removes what nobody follows any more.
func (y *young) forget(cookie uint64) {
	// What stays for an error is forgotten with the table.
	_ = entries.Forget(y.objects.YoungConnections, func(key programs.YoungYoungKey) bool { return key.Socket == cookie })
}

func (y *young) wake() {
	select {
	case y.awake <- struct{}{}:
	default:
	}
}

// run looks while there are young connections, and sleeps until the kernel has one.
func (y *young) run(stop, stopped chan struct{}) {
	defer close(stopped)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-stop:
			return
		case <-y.awake:
		case <-pause.C:
		}
		begin := time.Now()
		if y.look() || !y.sleep() {
			pause.Reset(max(y.pause(), youngRest*time.Since(begin)))
		}
	}
}

// pause is as long as the most impatient follower bears.
func (y *young) pause() time.Duration {
	y.mutex.Lock()
	defer y.mutex.Unlock()
	pause := resync
	for _, a := range y.followers {
		pause = min(pause, a.after/youngLooks)
	}
	return pause
}

// sleep has the kernel tell of the next connection, and is false where there is one
// already.
func (y *young) sleep() bool {
	if err := y.objects.Asleep.Put(uint32(0), uint32(1)); err != nil {
		return false
	}
	return !y.look()
}

// look hands over those that are old enough, and tells whether there are others.
func (y *young) look() (left bool) {
	y.looks.Lock() // one that was stopped may still end
	defer y.looks.Unlock()
	now, ticks := time.Now(), uint64(bpf.Now())
	keys, values := y.keys[:], y.values[:]
	var cursor ebpf.MapBatchCursor
	for {
		count, err := y.objects.YoungConnections.BatchLookup(&cursor, keys, values, nil)
		for i := range count {
			age := time.Duration(ticks - values[i].Began)
			if !y.handOver(&keys[i], &values[i], now, age) {
				left = true
			}
		}
		if err != nil {
			return left
		}
	}
}

// handOver gives a connection that is old enough to its follower.
func (y *young) handOver(key *programs.YoungYoungKey, value *programs.YoungYoungConnection, now time.Time, age time.Duration) bool {
	y.mutex.Lock()
	a := y.followers[key.Socket]
	y.mutex.Unlock()
	if a != nil && age < a.after {
		return false
	}
	if y.objects.YoungConnections.Delete(key) != nil || a == nil {
		return true // it closed, or nobody cares
	}
	a.add(value, now.Add(-age))
	return true
}

func (a *adolescents) add(value *programs.YoungYoungConnection, began time.Time) {
	g, ok := grownOf(value, began)
	if !ok {
		return
	}
	a.mutex.Lock()
	a.grown = append(a.grown, g)
	a.mutex.Unlock()
	select {
	case a.ready <- struct{}{}:
	default:
	}
}

func grownOf(value *programs.YoungYoungConnection, began time.Time) (g grown, ok bool) {
	event, ok := mptcpnl.ParseMessage(value.Message[:min(int(value.Length), len(value.Message))])
	if !ok {
		return g, false
	}
	g.began = began
	g.event, ok = event.(mptcpnl.ConnectionEvent)
	return g, ok
}

// hasGrown is ready when take returns some.
func (a *adolescents) hasGrown() <-chan struct{} {
	if a == nil {
		return nil
	}
	return a.ready
}

// take returns those that have grown since the last call.
func (a *adolescents) take() []grown {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	taken := a.grown
	a.grown = nil
	return taken
}

// adopt takes one connection that something happened to, however young.
func (a *adolescents) adopt(token uint32) (grown, bool) {
	key := programs.YoungYoungKey{Socket: a.cookie, Token: token}
	var value programs.YoungYoungConnection
	if err := a.young.objects.YoungConnections.LookupAndDelete(&key, &value); err != nil {
		return grown{}, false
	}
	return grownOf(&value, time.Now().Add(-time.Duration(uint64(bpf.Now())-value.Began)))
}

// isKept tells whether the kernel keeps the connection: its event only wakes.
func (a *adolescents) isKept(token uint32) bool {
	key := programs.YoungYoungKey{Socket: a.cookie, Token: token}
	var value programs.YoungYoungConnection
	err := a.young.objects.YoungConnections.Lookup(&key, &value)
	a.young.wake()
	return err == nil
}
