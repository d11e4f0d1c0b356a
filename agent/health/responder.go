// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// mostAnswered is how many probes a second a responder likes to answer. When more
	// come it asks the probers for longer intervals, and answers all the same.
	mostAnswered = 5000
	// presumed is the interval of probers that were asked for none.
	presumed = 50 * time.Millisecond
	longest  = 10 * time.Second
	// longestRouted is the most that is asked for on paths with routers: what comes there may
	// be of a pod, which could make all probes of the path rare by many of its own.
	longestRouted = 500 * time.Millisecond
	// answersInARow come from one socket before the next has its turn.
	answersInARow = 64
)

// Listener is an address of one of the node's NICs where probes are answered.
type Listener struct {
	// Interface is the index of the NIC.
	Interface int
	Address   netip.Addr
	// Routed: probes may have come by routers.
	Routed bool
}

// Responder answers the probes of other nodes: on each NIC those for its addresses
// that came in by it, with no more bytes than it was asked with. It is safe for
// concurrent use.
type Responder struct {
	options Options
	waker   waker

	mu       sync.Mutex
	wanted   map[place]bool // nil when there is nothing new
	counts   responderCounts
	sockets  map[place]*answering // of Run's goroutine, as what follows
	failed   map[place]string
	socketOf map[int]*answering // by its file descriptor
	files    *files
	load     load
}

type responderCounts struct{ answered, failed uint64 }

// NewResponder prepares a Responder; Run makes it work.
func NewResponder(options Options) (*Responder, error) {
	waker, err := newWaker()
	if err != nil {
		return nil, err
	}
	return &Responder{
		options: options.withDefaults(), waker: waker,
		sockets: map[place]*answering{}, failed: map[place]string{},
	}, nil
}

// Close frees what NewResponder took. Run must have ended, or never begun.
func (r *Responder) Close() error { return unix.Close(r.waker.fd) }

// SetListeners says where to answer from now on. An address that cannot be had is
// reported once and tried again with the next call.
func (r *Responder) SetListeners(listeners []Listener) {
	r.mu.Lock()
	r.wanted = map[place]bool{}
	for _, listener := range listeners {
		r.wanted[place{listener.Interface, listener.Address, listener.Routed}] = true
	}
	r.mu.Unlock()
	r.waker.wake()
}

// Run answers until the context ends.
func (r *Responder) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, r.waker.wake)
	defer stop()
	return inNamespace(r.options.Namespace, func() error { return r.run(ctx) })
}

func (r *Responder) run(ctx context.Context) (err error) {
	if r.files, err = openFiles(); err != nil {
		return err
	}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		err = errors.Join(err, r.listen(nil), r.files.close())
	}()
	if err := r.files.add(r.waker.fd); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := r.files.poll(-1); err != nil {
			return err
		}
		if err := r.round(); err != nil {
			r.options.Log.Error(err, "failed to answer probes")
		}
	}
	return nil
}

func (r *Responder) round() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files.handle(func(fd int) {
		if socket := r.socketOf[fd]; socket != nil {
			r.answer(socket)
		} else {
			r.waker.drain()
		}
	})
	var err error
	if r.wanted != nil {
		err = r.listen(r.wanted)
		r.wanted = nil
	}
	return err
}

// listen opens and closes sockets. The error names those that failed anew.
func (r *Responder) listen(wanted map[place]bool) (err error) {
	for at, socket := range r.sockets {
		if !wanted[at] {
			err = errors.Join(err, socket.close())
			delete(r.sockets, at)
		}
	}
	maps.DeleteFunc(r.failed, func(at place, _ string) bool { return !wanted[at] })
	for at := range wanted {
		if r.sockets[at] != nil {
			continue
		}
		socket, failed := r.files.openSocket(at, r.options.Port, kindRequest)
		if failed == nil {
			r.sockets[at] = &answering{socket: socket}
			delete(r.failed, at)
		} else if r.failed[at] != failed.Error() {
			r.failed[at] = failed.Error()
			err = errors.Join(err, fmt.Errorf("other nodes get no answers from %s: %w", at.address, failed))
		}
	}
	r.socketOf = map[int]*answering{}
	for _, socket := range r.sockets {
		r.socketOf[socket.fd] = socket
	}
	return err
}

// answer answers what a socket has.
func (r *Responder) answer(on *answering) {
	on.noteDepartures()
	for range answersInARow {
		request, ok := on.receive()
		if !ok {
			return
		}
		if request.kind == kindReply || !isPeer(request.from.Addr()) {
			continue
		}
		reply := packet{kind: kindReply, nonce: request.nonce, interval: r.load.interval(monotonic())}
		now := wallClock()
		if on.routed {
			reply.interval = min(reply.interval, longestRouted)
		}
		if request.at != 0 {
			reply.queued = on.queue(now)
			reply.held = now - request.at + reply.queued
		}
		on.sent[reply.nonce%uint64(len(on.sent))] = departure{reply.nonce, now}
		if err := on.send(reply, request.from); err != nil {
			r.counts.failed++
		} else {
			r.counts.answered++
		}
		on.noteDepartures() // most often it has left by now: then it wakes nobody
	}
}

// answering is a socket with what is known of the queue in front of its NIC. The
// answers say how long that is, because a peer must not take what this node's pods
// fill it with for the length of the path.
type answering struct {
	*socket
	sent    [16]departure // some of the latest answers
	waited  time.Duration // the last one that left
	knownAt time.Duration
}

// departure is an answer and when it was sent, by the wall clock.
type departure struct {
	nonce uint64
	at    time.Duration
}

// noteDepartures reads when the NIC took answers.
func (a *answering) noteDepartures() {
	for {
		nonce, at, ok := a.departed()
		if !ok {
			return
		}
		if sent := a.sent[nonce%uint64(len(a.sent))]; sent.nonce == nonce {
			a.waited, a.knownAt = at-sent.at, at
		}
	}
}

// queue is how long an answer will wait, from what the last one did.
func (a *answering) queue(now time.Duration) time.Duration {
	if now-a.knownAt > memory || a.waited < shortestQueue || a.waited > longestTimeout {
		return 0
	}
	return a.waited
}

// shortestQueue is a wait that is more than the way to the driver.
const shortestQueue = 200 * time.Microsecond

// isPeer is false for what a reply could multiply by or come back from.
func isPeer(from netip.Addr) bool {
	return from.IsValid() && !from.IsMulticast() && !from.IsUnspecified() && !from.IsLoopback() &&
		from != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// load is how many probes come, and what interval that calls for.
type load struct {
	since   time.Duration
	probes  int
	current time.Duration
}

// interval counts a probe, and returns the interval to ask its sender for.
func (l *load) interval(now time.Duration) time.Duration {
	l.probes++
	if passed := now - l.since; passed >= time.Second {
		rate := float64(l.probes) / passed.Seconds()
		wanted := float64(max(l.current, presumed)) * rate / mostAnswered
		l.current = min(time.Duration(wanted), longest)
		if l.current <= presumed {
			l.current = 0
		}
		l.since, l.probes = now, 0
	}
	return l.current
}
