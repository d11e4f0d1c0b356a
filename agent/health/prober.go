// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// DefaultPort is the UDP port of responders.
const DefaultPort = 8478

// Options of a Prober and a Responder. What is 0 gets its default.
type Options struct {
	// Namespace is the node's network namespace; the zero value and netns.None()
	// mean the process's own.
	Namespace netns.NsHandle
	// Port of responders on every node; 8478 by default.
	Port uint16
	// ActiveInterval lies between probes of a path to a peer with flows, 50 ms by
	// default; IdleInterval between those of others, 1 s.
	ActiveInterval, IdleInterval time.Duration
	// MostIdlePeers is the number of peers beyond which only active ones are probed,
	// 100 by default.
	MostIdlePeers int
	// MostProbes is how many are sent in a second to all peers together, 2000 by
	// default. Where that is too few, the intervals become longer.
	MostProbes int
	// Answered is told, where it is set, of each probe that was answered: by which peer,
	// on which path. It must not wait.
	Answered func(peer, path string)
	// Heard tells, where it is set, how long ago a peer answered on a path, be it a flow or a
	// probe; negative where that is not known. It must not wait.
	Heard func(peer, path string) time.Duration
	// Lost is told, where it is set, that a View has other lost paths. It must not wait.
	Lost func()
	Log  logr.Logger
}

func (o Options) withDefaults() Options {
	if o.Namespace == 0 {
		o.Namespace = netns.None()
	}
	setDefault(&o.Port, DefaultPort)
	setDefault(&o.ActiveInterval, 50*time.Millisecond)
	setDefault(&o.IdleInterval, time.Second)
	setDefault(&o.MostIdlePeers, 100)
	setDefault(&o.MostProbes, 2000)
	return o
}

func setDefault[T comparable](value *T, to T) {
	var zero T
	if *value == zero {
		*value = to
	}
}

// Prober probes targets. It is safe for concurrent use.
type Prober struct {
	options Options
	changed chan struct{}
	waker   waker

	mu      sync.Mutex
	tracker *tracker
	large   *tracker // of probes as large as pods' packets
	wanted  []Target // set and not yet probed; nil when there is nothing new
	counts  proberCounts

	// What follows belongs to Run's goroutine.
	clock      clock
	sockets    map[place]*socket
	failed     map[place]string // why there is no socket
	socketOf   map[int]*socket  // by its file descriptor
	neighbours neighbours
	files      *files
	told       time.Duration
}

type proberCounts struct {
	unasked uint64 // answers that nobody asked for
	unsent  uint64 // probes that the kernel did not take
	stalled time.Duration
}

// New prepares a Prober; Run makes it work.
func New(options Options) (*Prober, error) {
	options = options.withDefaults()
	waker, err := newWaker()
	if err != nil {
		return nil, err
	}
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // never fails
	pace := pacing{
		active: options.ActiveInterval, idle: options.IdleInterval, heard: heardInterval, mostIdle: options.MostIdlePeers,
		rate: options.MostProbes, burst: max(1, options.MostProbes/10), lostToDie: lostToDie, hurries: hurries,
	}
	nonce := rand.NewChaCha8(seed).Uint64
	tracker := newTracker(pace, nonce)
	tracker.tell, tracker.heard = options.Answered, options.Heard
	return &Prober{
		options: options, changed: make(chan struct{}, 1), waker: waker, tracker: tracker, large: newTracker(pace.large(), nonce),
		sockets: map[place]*socket{}, failed: map[place]string{},
	}, nil
}

// Close frees what New took. Run must have ended, or never begun.
func (p *Prober) Close() error { return unix.Close(p.waker.fd) }

// SetTargets says what to probe from now on. What is known of targets that stay as
// they are is kept, also when they become active or idle.
func (p *Prober) SetTargets(targets []Target) {
	p.mu.Lock()
	p.wanted = append([]Target{}, targets...)
	p.mu.Unlock()
	p.waker.wake()
}

// Changed tells of changes: of a state at once, of round-trip times and losses every
// 25 ms at most.
func (p *Prober) Changed() <-chan struct{} { return p.changed }

// View is what is known now.
func (p *Prober) View() View {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.view()
}

// Run probes until the context ends.
func (p *Prober) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, p.waker.wake)
	defer stop()
	return inNamespace(p.options.Namespace, func() error { return p.run(ctx) })
}

func (p *Prober) run(ctx context.Context) (err error) {
	if p.files, err = openFiles(); err != nil {
		return err
	}
	if p.neighbours, err = openNeighbours(); err != nil {
		return errors.Join(err, p.files.close())
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		err = errors.Join(err, p.neighbours.close(), p.files.close())
		for at := range p.sockets {
			err = errors.Join(err, p.closeSocket(at))
		}
	}()
	if err := errors.Join(p.files.add(p.waker.fd), p.files.add(p.neighbours.fd)); err != nil {
		return err
	}
	for planned := p.clock.now(); ctx.Err() == nil; {
		var wait time.Duration
		planned, wait = p.round(planned)
		if err := p.files.poll(wait); err != nil {
			return err
		}
	}
	return nil
}

// tellEvery is how often changes of figures are told.
const tellEvery = 25 * time.Millisecond

// round does what there is to do, and returns when there is more, and how long that
// is from now. Answers are read before anything is judged: one that came in time
// counts, however late it is read.
func (p *Prober) round(planned time.Duration) (next, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.resume(planned)
	p.counts.stalled = p.clock.missed
	p.files.handle(func(fd int) {
		switch socket := p.socketOf[fd]; {
		case socket != nil:
			p.receive(socket, now)
		case fd == p.neighbours.fd:
			p.takeNeighbours(now)
		default:
			p.waker.drain()
		}
	})
	p.doubtLarge()
	p.takeTargets(now)
	for _, tracker := range []*tracker{p.tracker, p.large} {
		for _, probe := range tracker.advance(now) {
			p.send(tracker, probe)
		}
	}
	next = min(p.tracker.next(), p.large.next(), p.tell(now))
	if next == never {
		return never, -1
	}
	return next, max(0, next-p.clock.now())
}

func (p *Prober) takeNeighbours(now time.Duration) {
	p.neighbours.each(func(which neighbour, answered bool) {
		if answered {
			p.tracker.neighbourAnswered(which)
		} else {
			p.tracker.neighbourFailed(now, which)
		}
	})
}

// tell says that there are changes, and returns when it is to be called again.
func (p *Prober) tell(now time.Duration) time.Duration {
	pending := &p.tracker.changes
	pending.state = pending.state || p.large.changes.state
	p.large.changes = changes{}
	if pending.lost && p.options.Lost != nil {
		p.options.Lost()
	}
	pending.lost = false
	switch {
	case !pending.state && !pending.figures:
		return never
	case !pending.state && now < p.told+tellEvery:
		return p.told + tellEvery
	}
	*pending, p.told = changes{}, now
	select {
	case p.changed <- struct{}{}:
	default:
	}
	return never
}

// takeTargets opens and closes sockets as new targets need them.
func (p *Prober) takeTargets(now time.Duration) {
	if p.wanted == nil {
		return
	}
	p.tracker.setTargets(now, withoutSize(p.wanted))
	p.large.setTargets(now, withSize(p.wanted))
	needed := map[place]bool{}
	for _, target := range p.wanted {
		needed[place{target.Interface, target.Local, target.Routed}] = true
	}
	p.wanted = nil
	for at := range p.sockets {
		if !needed[at] {
			if err := p.closeSocket(at); err != nil {
				p.options.Log.Error(err, "failed to close a socket for probes")
			}
		}
	}
	for at := range p.failed {
		if !needed[at] {
			delete(p.failed, at)
		}
	}
	for at := range needed {
		if p.sockets[at] == nil {
			p.open(at)
		}
	}
	p.socketOf = map[int]*socket{}
	for _, socket := range p.sockets {
		p.socketOf[socket.fd] = socket
	}
}

// open opens a socket. Without it probes are not sent, and its targets are unknown;
// the next SetTargets tries again.
func (p *Prober) open(at place) {
	socket, err := p.files.openSocket(at, 0, kindReply)
	if err == nil {
		p.sockets[at] = socket
		delete(p.failed, at)
		return
	}
	if p.failed[at] != err.Error() {
		p.failed[at] = err.Error()
		p.options.Log.Error(err, "failed to open a socket for probes; the paths of this address are not probed")
	}
}

func (p *Prober) closeSocket(at place) error {
	socket := p.sockets[at]
	delete(p.sockets, at)
	if err := socket.close(); err != nil {
		return fmt.Errorf("closing the socket for probes on %s: %w", at.address, err)
	}
	return nil
}

func (p *Prober) send(tracker *tracker, probe *probe) {
	target := probe.target
	socket := p.sockets[place{target.Interface, target.Local, target.Routed}]
	if socket == nil {
		tracker.withdraw(probe)
		return
	}
	probe.wall = wallClock()
	to := netip.AddrPortFrom(target.Remote, p.options.Port)
	if target.Size > 0 {
		p.sendLarge(socket, probe, to)
		return
	}
	err := socket.send(packet{kind: kindRequest, nonce: probe.nonce}, to)
	if err != nil {
		p.counts.unsent++
	}
	tracker.sentAt(probe, p.clock.now(), err == nil && socket.stamps)
	p.noteDepartures(socket)
}

// noteDepartures reads when the NIC took packets.
func (p *Prober) noteDepartures(from *socket) {
	for {
		nonce, at, ok := from.departed()
		if !ok {
			return
		}
		p.tracker.left(nonce, at)
	}
}

// mostReceived bounds what is read from one socket in a round.
const mostReceived = 4096

// receive reads what a socket has.
func (p *Prober) receive(from *socket, now time.Duration) {
	p.noteDepartures(from)
	for range mostReceived {
		reply, ok := from.receive()
		if !ok {
			return
		}
		if reply.from.Port() != p.options.Port || !p.tracker.answered(now, reply, from.nic) && !p.large.answered(now, reply, from.nic) {
			p.counts.unasked++
		}
	}
}

// Targets are what is probed, for those who show it; sorted.
func (p *Prober) Targets() []Target {
	p.mu.Lock()
	defer p.mu.Unlock()
	var targets []Target
	for _, target := range p.tracker.targets {
		targets = append(targets, target.Target)
	}
	slices.SortFunc(targets, compareTargets)
	return targets
}
