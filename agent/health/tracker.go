// SPDX-License-Identifier: Apache-2.0

package health

import (
	"container/heap"
	"net/netip"
	"slices"
	"time"
)

const (
	// answeredToRevive are probes in a row.
	answeredToRevive = 3
	// mostToRevive is what a path needs that keeps dying: the number doubles each
	// time it dies within relapse of having come alive.
	mostToRevive = 48
	relapse      = 3 * time.Second

	// shortestTimeout is what an answer may take beyond the smoothed round-trip time.
	shortestTimeout = 20 * time.Millisecond
	// firstTimeout holds until a round trip was measured.
	firstTimeout   = time.Second
	longestTimeout = time.Second
	// queued is what a probe may wait in this node's own queue.
	queued = 100 * time.Millisecond
	// lostToDie are small probes in a row, of which so many come in a hurry.
	lostToDie = 3
	hurries   = 4
	// grace lies between the proof that the peer answers and the verdict on a probe
	// that it did not: answers that come together are read one after the other.
	grace = 5 * time.Millisecond
	// together lies at most between probes that are sent at once, and in which a peer
	// goes away so rarely that one probe alone is taken for lost.
	together = 5 * time.Millisecond
	// heardInterval lies between probes of a path on which flows are answered all the time: what is
	// left for probes to find is what flows do not, and how long round trips are.
	heardInterval = 250 * time.Millisecond
	// memory is how long a late answer is still understood.
	memory = time.Second
	// A probe without an answer in time is followed by quick ones, until there is a
	// verdict, or hurries have been spent without an answer.
	quick = 5 * time.Millisecond
	// forgiven is when a dead path is unknown again because its peer is silent on
	// all paths.
	forgiven = time.Minute
	never    = time.Duration(1<<63 - 1)
)

// pacing says how often targets are probed.
type pacing struct {
	active, idle time.Duration
	heard        time.Duration // of active ones while flows are answered on all paths to the peer
	mostIdle     int           // peers; with more of them only active ones are probed
	rate, burst  int           // probes a second of the whole node
	lostToDie    int           // probes in a row
	hurries      int
	// keepsDead targets being probed that are not active: for what costs those who come next
	// more than a probe.
	keepsDead bool
}

// tracker is everything but clocks and sockets. Times are those since some moment,
// without those during which the agent was held up. It is not safe for concurrent
// use.
type tracker struct {
	pacing pacing
	nonce  func() uint64                         // never the same, and not to be guessed
	tell   func(peer, path string)               // of answers; nil for nobody
	heard  func(peer, path string) time.Duration // see Options; nil where nobody knows

	targets map[pair]*target
	at      map[neighbour][]*target // several where a router leads to them
	peers   map[string]*peer
	totals  map[string]*totals // by path; they stay when targets go
	probes  map[uint64]*probe
	due     events // of targets: probes to send
	checks  events // of probes and peers: what to judge
	onlyHot bool   // idle targets are not probed

	tokens  float64
	counted time.Duration // when the tokens were
	changes changes
}

// changes tell that a View would say something new, and which paths have come alive again.
type changes struct {
	state, figures, lost bool
	revived              []*target
}

type peer struct {
	targets    []*target
	answeredAt time.Duration // when it answered last, on whichever path
	returned   time.Duration // when it answered for the first time since it answered on no path
	waiting    int           // probes that wait for a verdict
	// Until when answers to flows are recent enough to stand in for probes, as of the time after it.
	recentUntil, recentAsOf time.Duration
}

// target is a Target and what is known of it.
type target struct {
	Target
	peer *peer
	gone bool

	state            State
	unresolved, lost bool // see Sample; unresolved is what the kernel alone says
	rtt, deviation   time.Duration
	distance         distance
	lostInARow       int
	answeredInARow   int
	unansweredInARow int // lost or not
	needed           int // answers in a row to come alive
	died, revived    time.Duration
	history          uint64 // a bit for each probe, the last one lowest; set for a lost one
	judged           int    // bits of history, and counting on
	hurries          int
	asked            time.Duration // the least interval that the peer wants
	due, last        time.Duration // of the probes; last is never before the first
	answeredSent     time.Duration // when the latest answered probe was sent
	recent           []*probe      // in the order in which they were sent
	unjudged         []*probe      // without an answer in time
	got              bool          // an answer, ever
	totals           *totals       // of its path
	shown            Sample        // when changes were told last
}

// probe is one that was sent and not forgotten.
type probe struct {
	target   *target
	nonce    uint64
	sent     time.Duration
	wall     time.Duration // sent, by the wall clock
	departed time.Duration // when the NIC had it, by the wall clock; 0 while nobody said so
	deadline time.Duration
	overdue  bool          // the deadline passed; now it is that of its memory
	answered time.Duration // when its answer was read; 0 without one
	lost     int           // judged lost, as that bit of history, counted from 1
}

func newTracker(pacing pacing, nonce func() uint64) *tracker {
	return &tracker{
		pacing: pacing, nonce: nonce, tokens: float64(pacing.burst),
		targets: map[pair]*target{}, at: map[neighbour][]*target{}, peers: map[string]*peer{}, probes: map[uint64]*probe{}, totals: map[string]*totals{},
	}
}

// setTargets keeps what is known of targets that stay. Of several for one path of a
// peer the first counts.
func (t *tracker) setTargets(now time.Duration, wanted []Target) {
	keep := make(map[pair]Target, len(wanted))
	for _, w := range wanted {
		if _, twice := keep[pair{w.Peer, w.Path}]; !twice {
			keep[pair{w.Peer, w.Path}] = w
		}
	}
	for of, known := range t.targets {
		w, stays := keep[of]
		w.Active, w.Judged, w.Other = known.Active, known.Judged, known.Other
		if !stays || w != known.Target {
			t.drop(known)
		}
	}
	for of, w := range keep {
		if t.targets[of] == nil {
			t.add(now, w)
		}
		t.targets[of].Active, t.targets[of].Judged = w.Active, w.Judged
		t.locate(t.targets[of], w.Other)
	}
	t.onlyHot = len(t.peers) > t.pacing.mostIdle
	t.reschedule(now)
}

func (t *tracker) add(now time.Duration, w Target) {
	of := t.peers[w.Peer]
	if of == nil {
		of = &peer{}
		t.peers[w.Peer] = of
	}
	if t.totals[w.Path] == nil {
		t.totals[w.Path] = &totals{}
	}
	added := &target{Target: w, peer: of, totals: t.totals[w.Path], needed: answeredToRevive, hurries: t.pacing.hurries, due: never, last: now - time.Hour}
	of.targets = append(of.targets, added)
	t.targets[pair{w.Peer, w.Path}] = added
	t.note(added, added.nextHop())
}

// nextHop is whose hardware address the kernel asks for.
func (t *target) nextHop() netip.Addr {
	if t.Router.IsValid() {
		return t.Router
	}
	return t.Remote
}

func (t *tracker) note(of *target, address netip.Addr) {
	which := neighbour{of.Interface, address}
	t.at[which] = append(t.at[which], of)
}

func (t *tracker) forgetAt(of *target, address netip.Addr) {
	which := neighbour{of.Interface, address}
	left := slices.DeleteFunc(t.at[which], func(other *target) bool { return other == of })
	if t.at[which] = left; len(left) == 0 {
		delete(t.at, which)
	}
}

func (t *tracker) drop(known *target) {
	known.gone = true
	known.peer.waiting -= len(known.unjudged)
	known.peer.targets = slices.DeleteFunc(known.peer.targets, func(other *target) bool { return other == known })
	if len(known.peer.targets) == 0 {
		delete(t.peers, known.Peer)
	}
	delete(t.targets, pair{known.Peer, known.Path})
	t.locate(known, netip.Addr{})
	t.forgetAt(known, known.nextHop())
	t.changes.state = true
}

// locate says which other address the target has.
func (t *tracker) locate(of *target, other netip.Addr) {
	if of.Other.IsValid() {
		t.forgetAt(of, of.Other)
	}
	if of.Other = other; other.IsValid() {
		t.note(of, other)
	}
}

func (t *target) forget() {
	t.state, t.rtt, t.deviation, t.history, t.judged = Unknown, 0, 0, 0, 0
	t.lostInARow, t.answeredInARow, t.unansweredInARow, t.needed = 0, 0, 0, answeredToRevive
}

// remember keeps probes for as long as something may be concluded from them.
func (t *target) remember(p *probe) {
	old := 0
	for old < len(t.recent) && p.sent-t.recent[old].sent > longestTimeout+2*memory {
		old++
	}
	if old > 0 {
		old-- // what came before the others says something of them
	}
	t.recent = append(t.recent[old:], p)
}

// sentAt says when a probe was handed to the kernel, and whether the kernel will
// tell when the NIC has it.
func (t *tracker) sentAt(p *probe, at time.Duration, stamped bool) {
	p.sent, p.target.last = at, at
	wait := p.target.timeout()
	if stamped {
		wait += queued
	}
	t.await(p, at+wait)
}

func (t *tracker) await(p *probe, deadline time.Duration) {
	p.deadline = deadline
	heap.Push(&t.checks, event{at: deadline, probe: p})
}

// left says when the NIC had a probe, by the wall clock.
func (t *tracker) left(nonce uint64, at time.Duration) {
	p := t.probes[nonce]
	if p == nil {
		return
	}
	p.departed = at
	if wait := at - p.wall; !p.overdue && wait >= 0 && wait < longestTimeout {
		t.await(p, p.sent+wait+p.target.timeout())
	}
}

// withdraw forgets a probe that was not sent.
func (t *tracker) withdraw(p *probe) {
	delete(t.probes, p.nonce)
	p.target.recent = slices.DeleteFunc(p.target.recent, func(other *probe) bool { return other == p })
	p.target.totals.sent--
}

// answered takes an answer. It is false for one that nobody asked for: to no probe,
// from another address, or by another NIC.
func (t *tracker) answered(now time.Duration, reply received, nic int) bool {
	p := t.probes[reply.nonce]
	if p == nil || p.target.gone || reply.kind != kindReply || reply.from.Addr() != p.target.Remote || nic != p.target.Interface {
		return false
	}
	of := p.target
	delete(t.probes, reply.nonce)
	if i := slices.Index(of.unjudged, p); i >= 0 {
		of.unjudged = slices.Delete(of.unjudged, i, i+1)
		of.peer.waiting--
	}
	of.measure(p, now, reply)
	of.peer.compareDistances(now)
	if !of.peer.answers() {
		of.peer.comeBack(now)
	}
	of.note(p)
	of.hurries = t.pacing.hurries
	of.asked = reply.interval
	of.answeredSent, of.peer.answeredAt = max(of.answeredSent, p.sent), now
	p.answered = now
	if t.tell != nil {
		t.tell(of.Peer, of.Path)
	}
	t.welcome(of, now)
	if of.peer.waiting > 0 {
		heap.Push(&t.checks, event{at: now + grace, peer: of.peer})
	}
	return true
}

// roundTrip is from when the NIC had the probe until the kernel had the answer,
// without what the responder says that it and its NIC took. It is not positive where
// these took less than it thought. Where the wall clock was set meanwhile it is what
// this agent sees, which is never too short.
func (p *probe) roundTrip(now time.Duration, reply received) time.Duration {
	begun := p.departed
	if begun == 0 {
		begun = p.wall
	}
	rtt, isExact := p.since(begun, now, reply)
	rtt -= reply.held
	if !isExact {
		rtt = max(rtt, time.Microsecond)
	}
	return rtt
}

// wait is what a packet of a flow and its answer would have taken, with the queues of both NICs.
func (p *probe) wait(now time.Duration, reply received) time.Duration {
	wait, _ := p.since(p.wall, now, reply)
	return max(wait-reply.held+reply.queued, time.Microsecond)
}

// since is how long after some time by the wall clock the kernel had the answer; where the clock was set meanwhile, since the
// probe was sent, as far as this agent sees.
func (p *probe) since(begun, now time.Duration, reply received) (passed time.Duration, isExact bool) {
	seen := max(now-p.sent, time.Microsecond)
	if whole := reply.at - begun; reply.at != 0 && whole > 0 && whole <= seen+stall {
		return whole, true
	}
	return seen, false
}

// answers tells whether it does on any path, as the status shows it.
func (p *peer) answers() bool { return slices.ContainsFunc(p.targets, (*target).answers) }

// comeBack: what it answered on no path says nothing of the others, on which it may answer next.
func (p *peer) comeBack(now time.Duration) {
	p.returned = now
	for _, target := range p.targets {
		target.unansweredInARow = 0
	}
}

// note counts an answer; one that comes late takes its loss back.
func (t *target) note(p *probe) {
	t.got = true
	t.totals.answered++
	t.lostInARow, t.unansweredInARow = 0, 0
	t.answeredInARow++
	if p.lost == 0 {
		t.history <<= 1
		t.judged++
	} else if age := t.judged - p.lost; age >= 0 && age < 64 {
		t.history &^= 1 << age
	}
}

// measure smooths the round-trip time, as RFC 6298 does, and faster: probes are few.
func (t *target) measure(p *probe, now time.Duration, reply received) {
	rtt := p.roundTrip(now, reply)
	switch {
	case rtt > 0 && t.rtt > 0:
		t.deviation += ((t.rtt - rtt).Abs() - t.deviation) / 4
		t.rtt += (rtt - t.rtt) / 4
	case t.rtt == 0:
		rtt = max(rtt, time.Microsecond)
		t.rtt, t.deviation = rtt, rtt/2
	}
	t.distance.measure(now, p.wait(now, reply))
}

// unansweredToShow are probes in a row.
const unansweredToShow = 3

func (t *target) answers() bool { return t.got && t.unansweredInARow < unansweredToShow }

func (t *target) sample() Sample {
	return Sample{
		State: t.state, RTT: t.rtt, Loss: t.loss(),
		Probed:  t.got || t.unansweredInARow >= unansweredToShow,
		Answers: t.answers(),
		Distant: t.distance.distant, DistanceKnown: t.distance.known,
		Lost: t.lost,
	}
}

func (t *tracker) view() View {
	v := View{samples: make(map[pair]Sample, len(t.targets))}
	for of, target := range t.targets {
		v.samples[of] = target.sample()
	}
	return v
}
