// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"container/heap"
	"net/netip"
	"slices"
	"time"
)

const (
	// lostToDie and answeredToRevive are probes in a row.
	lostToDie        = 3
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
	// grace lies between the proof that the peer answers and the verdict on a probe
	// that it did not: answers that come together are read one after the other.
	grace = 5 * time.Millisecond
	// together lies at most between probes that are sent at once, and in which a peer
	// goes away so rarely that one probe alone is taken for lost.
	together = 5 * time.Millisecond
	// memory is how long a late answer is still understood.
	memory = time.Second
	// A probe without an answer in time is followed by quick ones, until there is a
	// verdict, or hurries have been spent without an answer.
	quick   = 5 * time.Millisecond
	hurries = 4
	// forgiven is when a dead path is unknown again because its peer is silent on
	// all paths.
	forgiven = time.Minute
	never    = time.Duration(1<<63 - 1)
)

// pacing says how often targets are probed.
type pacing struct {
	active, idle time.Duration
	mostIdle     int // peers; with more of them only active ones are probed
	rate, burst  int // probes a second of the whole node
}

// tracker is everything but clocks and sockets. Times are those since some moment,
// without those during which the agent was held up. It is not safe for concurrent
// use.
type tracker struct {
	pacing pacing
	nonce  func() uint64 // never the same, and not to be guessed

	targets map[pair]*target
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

// changes tell that a View would say something new.
type changes struct{ state, figures bool }

type peer struct {
	targets    []*target
	answeredAt time.Duration // when it answered last, on whichever path
	waiting    int           // probes that wait for a verdict
}

// target is a Target and what is known of it.
type target struct {
	Target
	peer *peer
	gone bool

	state            State
	rtt, deviation   time.Duration
	lostInARow       int
	answeredInARow   int
	unansweredInARow int // lost or not
	needed           int // answers in a row to come alive
	revived          time.Duration
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

// event is something to do at a time, with one of the three. An event stays where it
// is when there is nothing to do any more.
type event struct {
	at     time.Duration
	target *target // to be probed, if it is still due then
	probe  *probe  // to be examined, if it is still waiting
	peer   *peer   // whose probes may be judged
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	(*e)[len(*e)-1] = event{}
	*e = (*e)[:len(*e)-1]
	return last
}

func newTracker(pacing pacing, nonce func() uint64) *tracker {
	return &tracker{
		pacing: pacing, nonce: nonce, tokens: float64(pacing.burst),
		targets: map[pair]*target{}, peers: map[string]*peer{}, probes: map[uint64]*probe{}, totals: map[string]*totals{},
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
		w.Active = known.Active
		if !stays || w != known.Target {
			t.drop(known)
		}
	}
	for of, w := range keep {
		if t.targets[of] == nil {
			t.add(now, w)
		}
		t.targets[of].Active = w.Active
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
	added := &target{Target: w, peer: of, totals: t.totals[w.Path], needed: answeredToRevive, hurries: hurries, due: never, last: now - time.Hour}
	of.targets = append(of.targets, added)
	t.targets[pair{w.Peer, w.Path}] = added
}

func (t *tracker) drop(known *target) {
	known.gone = true
	known.peer.waiting -= len(known.unjudged)
	known.peer.targets = slices.DeleteFunc(known.peer.targets, func(other *target) bool { return other == known })
	if len(known.peer.targets) == 0 {
		delete(t.peers, known.Peer)
	}
	delete(t.targets, pair{known.Peer, known.Path})
	t.changes.state = true
}

// reschedule has targets probed as often as they are to be. One that is no longer
// probed is unknown: what was known of it grows old.
func (t *tracker) reschedule(now time.Duration) {
	for _, target := range t.targets {
		switch {
		case t.resting(target):
			if target.due != never {
				t.drop(target)
				t.add(now, target.Target)
			}
		case target.due == never:
			t.schedule(target, now+t.phase(target))
		default:
			t.schedule(target, min(target.due, now+t.interval(target)))
		}
	}
}

func (t *tracker) resting(of *target) bool { return t.onlyHot && !of.Active }

// phase spreads first probes over the interval; those of active targets wait for
// nothing.
func (t *tracker) phase(of *target) time.Duration {
	if of.Active {
		return 0
	}
	return time.Duration(t.nonce() % uint64(t.pacing.idle))
}

func (t *target) forget() {
	t.state, t.rtt, t.deviation, t.history, t.judged = Unknown, 0, 0, 0, 0
	t.lostInARow, t.answeredInARow, t.unansweredInARow, t.needed = 0, 0, 0, answeredToRevive
}

func (t *tracker) interval(of *target) time.Duration {
	interval := t.pacing.idle
	if of.Active || of.state == Dead && of.answeredInARow > 0 {
		interval = t.pacing.active
	}
	return max(interval, of.asked)
}

func (t *tracker) schedule(of *target, at time.Duration) {
	if of.due != at {
		of.due = at
		heap.Push(&t.due, event{at: at, target: of})
	}
}

// next is when there is something to do.
func (t *tracker) next() time.Duration {
	next := never
	if len(t.checks) > 0 {
		next = t.checks[0].at
	}
	if len(t.due) > 0 {
		next = min(next, max(t.due[0].at, t.tokenAt()))
	}
	return next
}

// mostAtOnce keeps answers from waiting while many probes are sent.
const mostAtOnce = 64

// advance judges what was not answered, and returns the probes to send now. All
// answers that came before now must have been given to answered. Each probe that is
// returned must be given to sentAt.
func (t *tracker) advance(now time.Duration) (toSend []*probe) {
	for len(t.checks) > 0 && t.checks[0].at <= now {
		check := heap.Pop(&t.checks).(event)
		if check.probe != nil {
			t.examine(check.probe, now)
		} else {
			t.judge(check.peer, now)
		}
	}
	t.refill(now)
	for len(t.due) > 0 && t.due[0].at <= now && t.tokens >= 1 && len(toSend) < mostAtOnce {
		due := heap.Pop(&t.due).(event)
		if due.target.gone || due.target.due != due.at {
			continue
		}
		t.tokens--
		toSend = append(toSend, t.probe(due.target, now))
	}
	return toSend
}

// refill adds the tokens of the time that has passed: each probe takes one.
func (t *tracker) refill(now time.Duration) {
	t.tokens = min(float64(t.pacing.burst), t.tokens+(now-t.counted).Seconds()*float64(t.pacing.rate))
	t.counted = now
}

// tokenAt is when a probe may be sent.
func (t *tracker) tokenAt() time.Duration {
	if t.tokens >= 1 {
		return t.counted
	}
	missing := (1 - t.tokens) / float64(t.pacing.rate)
	return t.counted + time.Duration(missing*float64(time.Second)) + time.Microsecond
}

func (t *tracker) probe(of *target, now time.Duration) *probe {
	p := &probe{target: of, nonce: t.nonce(), sent: now}
	t.probes[p.nonce] = p
	of.remember(p)
	of.totals.sent++
	t.schedule(of, now+t.interval(of))
	t.join(of.peer, now)
	return p
}

// join has the other paths to the peer probed together with this one, if they are to
// be soon: what is lost on one is judged by what is answered on another.
func (t *tracker) join(of *peer, now time.Duration) {
	for _, other := range of.targets {
		if other.due > now && other.due-now < t.interval(other)/2 {
			t.schedule(other, now)
		}
	}
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

// timeout is how long an answer may take.
func (t *target) timeout() time.Duration {
	if t.rtt == 0 {
		return firstTimeout
	}
	return min(t.rtt+max(shortestTimeout, 4*t.deviation), longestTimeout)
}

// examine looks at a probe whose deadline, or whose time in memory, has come.
func (t *tracker) examine(p *probe, now time.Duration) {
	switch {
	case t.probes[p.nonce] != p: // answered
	case p.target.gone:
		delete(t.probes, p.nonce)
	case now < p.deadline: // it was put off
	case p.overdue:
		t.giveUp(p, now)
	default:
		p.overdue = true
		t.await(p, now+memory)
		p.target.unjudged = append(p.target.unjudged, p)
		p.target.peer.waiting++
		t.judge(p.target.peer, now)
		t.hurry(p.target, now)
	}
}

// hurry probes a path that may be dead, and the others to the same peer, without
// which nothing could be said of it.
func (t *tracker) hurry(of *target, now time.Duration) {
	if of.state == Dead || of.hurries == 0 {
		return
	}
	of.hurries--
	for _, target := range append([]*target{of}, of.peer.targets...) {
		if !t.resting(target) {
			t.schedule(target, min(target.due, max(now, target.last+quick)))
		}
	}
}

// judge finds the probes that a peer would have answered.
func (t *tracker) judge(of *peer, now time.Duration) {
	for _, target := range of.targets {
		var open []*probe
		for _, p := range target.unjudged {
			switch proven := of.provenAt(target, p.sent); {
			case proven <= now:
				of.waiting--
				t.lost(p, now)
				continue
			case proven != never:
				heap.Push(&t.checks, event{at: proven, peer: of})
			}
			open = append(open, p)
		}
		target.unjudged = open
	}
}

// provenAt is when it is proven that the peer answered probes that were sent at a
// time, on another path than this; never if it is not.
func (p *peer) provenAt(on *target, sent time.Duration) time.Duration {
	earliest := never
	for _, other := range p.targets {
		if other != on {
			earliest = min(earliest, other.provenAt(sent))
		}
	}
	return earliest
}

// provenAt looks at the probes next to that time: that before it and that after it,
// or sent together with it, must have been answered, or the peer's agent may have
// been away.
func (t *target) provenAt(sent time.Duration) time.Duration {
	after, _ := slices.BinarySearchFunc(t.recent, sent-together, func(p *probe, sent time.Duration) int { return cmp.Compare(p.sent, sent) })
	if after == len(t.recent) || t.recent[after].answered == 0 || after > 0 && t.recent[after-1].answered == 0 {
		return never
	}
	return t.recent[after].answered + grace
}

func (t *tracker) lost(p *probe, now time.Duration) {
	of := p.target
	of.totals.lost++
	of.history = of.history<<1 | 1
	of.judged++
	p.lost = of.judged
	t.changes.figures = true
	if p.sent < of.answeredSent {
		return
	}
	of.answeredInARow = 0
	of.unansweredInARow++
	of.lostInARow++
	if of.lostInARow >= lostToDie && of.state != Dead {
		t.die(of, now)
	}
}

func (t *tracker) die(of *target, now time.Duration) {
	if of.state == Alive && of.revived > 0 && now-of.revived < relapse {
		of.needed = min(2*of.needed, mostToRevive)
	} else {
		of.needed = answeredToRevive
	}
	of.state, of.hurries, of.answeredInARow = Dead, 0, 0
	t.changes.state = true
}

// giveUp forgets a probe that was never answered. Where the peer answered on no path
// it says nothing about this one.
func (t *tracker) giveUp(p *probe, now time.Duration) {
	of := p.target
	delete(t.probes, p.nonce)
	if i := slices.Index(of.unjudged, p); i >= 0 {
		of.unjudged = slices.Delete(of.unjudged, i, i+1)
		of.peer.waiting--
		if p.sent > of.answeredSent {
			of.unansweredInARow++
			of.answeredInARow = 0
		}
	}
	silent := of.state == Alive && of.unansweredInARow >= lostToDie && of.lostInARow < lostToDie
	if silent || of.state == Dead && now-of.peer.answeredAt > forgiven {
		of.forget()
		of.unansweredInARow = lostToDie
		t.changes.state = true
	}
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
	of.note(p)
	of.asked = reply.interval
	of.answeredSent, of.peer.answeredAt = max(of.answeredSent, p.sent), now
	p.answered = now
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
	seen := max(now-p.sent, time.Microsecond)
	begun := p.departed
	if begun == 0 {
		begun = p.wall
	}
	if whole := reply.at - begun; reply.at != 0 && whole > 0 && whole <= seen+stall {
		return whole - reply.held
	}
	return max(seen-reply.held, time.Microsecond)
}

// note counts an answer; one that comes late takes its loss back.
func (t *target) note(p *probe) {
	t.got = true
	t.totals.answered++
	t.hurries = hurries
	t.lostInARow, t.unansweredInARow = 0, 0
	t.answeredInARow++
	if p.lost == 0 {
		t.history <<= 1
		t.judged++
	} else if age := t.judged - p.lost; age >= 0 && age < 64 {
		t.history &^= 1 << age
	}
}

// welcome makes a path alive that answers enough.
func (t *tracker) welcome(of *target, now time.Duration) {
	switch {
	case of.state == Unknown:
		of.state = Alive
		t.changes.state = true
	case of.state == Dead && of.answeredInARow >= of.needed:
		of.state, of.revived = Alive, now
		of.history, of.judged = 0, 0
		t.changes.state = true
	case of.state == Dead:
		t.schedule(of, min(of.due, now+t.interval(of)))
	case of.differs():
		of.shown = of.sample()
		t.changes.figures = true
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
}

// neighbourFailed says that the kernel cannot resolve an address. Half of what makes
// a path dead is proven so; the rest is asked for at once.
func (t *tracker) neighbourFailed(now time.Duration, nic int, address netip.Addr) {
	for _, target := range t.targets {
		if target.Interface != nic || target.Remote != address || target.state == Dead || t.resting(target) {
			continue
		}
		target.lostInARow = max(target.lostInARow, lostToDie-1)
		target.hurries = max(target.hurries, 1)
		t.hurry(target, now)
	}
}

func (t *target) sample() Sample {
	return Sample{
		State: t.state, RTT: t.rtt, Loss: t.loss(),
		Probed:  t.got || t.unansweredInARow >= lostToDie,
		Answers: t.got && t.unansweredInARow < lostToDie,
	}
}

func (t *tracker) view() View {
	v := View{samples: make(map[pair]Sample, len(t.targets))}
	for of, target := range t.targets {
		v.samples[of] = target.sample()
	}
	return v
}
